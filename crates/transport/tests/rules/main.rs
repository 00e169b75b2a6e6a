//! The rules of the protocol, each as a test that names it.
//!
//! Two engines face each other over a wire that the test controls packet by
//! packet: see [`pair`].

#![forbid(unsafe_code)]

mod basics;
mod pair;
