//! Extended completion queues: polled one completion at a time.
