//! The rules of connection management, each a test that names it.

mod close;
mod connect;
mod drive;
mod forged;
mod listen;
mod pair;
mod refuse;
mod repeat;
mod resolve;
mod resume;
mod stale;
