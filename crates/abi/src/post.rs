//! Posting work requests.
