//! Shared receive queues.
