//! Tests that inject bugs, which only tests of this crate can do.

mod sim;
