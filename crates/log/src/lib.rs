//! The log of libferroce.so and ferroced: a [`Filter`], read from `FERROCE_LOG`, and a
//! [`Logger`], which writes each selected event of `tracing` as one line.
//!
//! A program maps this code into its address space, so the crate has no regular expressions
//! and no registry of spans: Ferroce opens no span.

#![forbid(unsafe_code)]

mod filter;
mod line;
mod logger;

pub use filter::{BadDirective, Filter, VARIABLE};
pub use logger::Logger;
