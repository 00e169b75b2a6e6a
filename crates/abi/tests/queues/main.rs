//! Tests of queue pairs through the functions and function pointers of C: two queue pairs in
//! one process, over a real network.

#[path = "../common/mod.rs"]
mod common;

mod extended;
mod operations;
mod refusals;
mod shared;
mod states;
mod support;
