//! Device memory, which is ordinary memory here.
