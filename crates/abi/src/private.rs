//! What provider libraries import from libibverbs.
