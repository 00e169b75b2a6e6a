//! The rules of connection management, one test per rule.

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
