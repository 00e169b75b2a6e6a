//! Extended queue pairs: work requests built by function calls.
