//! Whole networks from a seed.

mod sim;
