//! System tests with real processes, sockets and memory. Each test has its own network
//! namespace, a ferroced and other programs, all of them this test program in other roles.

mod buffer;
mod cables;
mod client;
mod crowd;
mod datagram_faults;
mod death;
mod events;
mod example;
mod forged;
mod local;
mod local_datagrams;
mod memory;
mod opening;
mod operations;
mod process;
mod shards;
mod sharing;
mod storm;
mod support;
