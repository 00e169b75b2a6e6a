//! Real processes, real sockets, real memory: each test has a network of its own, a
//! ferroced, and other programs, all of them this test program in different roles.

mod cables;
mod crowd;
mod death;
mod events;
mod example;
mod forged;
mod memory;
mod opening;
mod operations;
mod process;
mod shards;
mod storm;
mod support;
