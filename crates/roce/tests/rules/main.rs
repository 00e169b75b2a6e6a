//! Rules of the RC, UC, UD and XRC protocols: one test per rule, named after the rule.
//!
//! Two engines exchange packets over a wire that the test controls packet by packet: see
//! [`pair`]. By default host 0 is the requester and host 1 the responder. Both start at PSN
//! 1000 with a path MTU of 1024 bytes.

#![forbid(unsafe_code)]
#![allow(unreachable_pub)] // a test binary exports nothing

mod access;
mod ack_requests;
mod bad_input;
mod bad_packets;
mod basics;
mod congestion;
mod crafted;
mod datagram_routes;
mod decisions;
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
