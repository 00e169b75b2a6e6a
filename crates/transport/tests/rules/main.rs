//! The rules of the protocol, each as a test that names it.
//!
//! Two engines face each other over a wire that the test controls packet by
//! packet: see [`pair`].

#![forbid(unsafe_code)]
#![allow(unreachable_pub)] // nobody reaches into a test

mod basics;
mod congestion;
mod duplicates;
mod pair;
mod ram;
mod raw;
mod retry;
mod rnr;
mod sequence;
mod shorthand;
