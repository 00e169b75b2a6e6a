//! The rules of the protocol, each as a test that names it.
//!
//! Two engines face each other over a wire that the test controls packet by
//! packet: see [`pair`].

#![forbid(unsafe_code)]
#![allow(unreachable_pub)] // nobody reaches into a test

mod access;
mod ack_requests;
mod bad_input;
mod bad_packets;
mod basics;
mod congestion;
mod crafted;
mod drive;
mod duplicates;
mod faults;
mod flush;
mod memory_windows;
mod operations;
mod pair;
mod prediction;
mod probe;
mod qp_numbers;
mod ram;
mod receive_path;
mod retry;
mod rnr;
mod runs;
mod sequence;
mod shorthand;
mod states;
mod unreliable_connected;
mod unreliable_datagram;
mod xrc;
