//! librdmacm through its C functions: connections, datagrams, events and errors. Both ends
//! are this process; ferroced is a real one.

#![allow(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)] // as in C

#[path = "../common/mod.rs"]
mod common;

mod channels;
mod datagrams;
mod ends;
mod input;
mod many;
mod refused;
mod reliable;
mod restart;
mod stopped;
mod synchronous;
