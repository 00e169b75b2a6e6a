//! librdmacm: connections for programs, made by the connection manager in ferroced.

mod stubs;

pub use stubs::*;
