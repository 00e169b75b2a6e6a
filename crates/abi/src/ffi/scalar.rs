//! Big-endian scalars.

pub type __be16 = u16;

pub type __be32 = u32;

pub type __be64 = u64;
