//! Thread domains and parent domains.
