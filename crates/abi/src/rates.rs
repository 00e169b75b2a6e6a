//! Rates as numbers.
