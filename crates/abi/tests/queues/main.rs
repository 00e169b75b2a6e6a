//! Queue pairs as C programs use them: two in one process, over a real network,
//! through the functions and function pointers that programs call.

#[path = "../common/mod.rs"]
mod common;

mod extended;
mod operations;
mod refusals;
mod shared;
mod states;
mod support;
