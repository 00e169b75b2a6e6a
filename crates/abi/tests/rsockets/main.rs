//! Tests of the rsocket functions under a real ferroced, between threads and processes.

#![allow(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)] // as in C
#![allow(clippy::disallowed_methods)] // both ends of a connection run in threads

#[path = "../common/mod.rs"]
mod common;

mod datagrams;
mod ends;
mod iomaps;
mod lengths;
mod many;
mod nonblocking;
mod options;
mod socket;
mod streams;
