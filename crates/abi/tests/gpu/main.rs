//! Memory of GPUs, through the functions of C.
//!
//! The driver is a stand-in (`libcuda.c`), unless `FERROCE_TEST_LIBCUDA` names the real one: on a
//! machine with a GPU, `FERROCE_TEST_LIBCUDA=libcuda.so.1` runs the same tests with real
//! memory. Tests that need more than one GPU, or failures of the driver, then do nothing.

#![allow(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)] // as in C

#[path = "../common/mod.rs"]
mod common;

mod cuda;
mod failures;
mod fixture;
mod operations;
mod registration;
