//! Protection domains.
