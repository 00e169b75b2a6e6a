//! Functions that libibverbs got after version 44.
