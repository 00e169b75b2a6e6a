//! librspreload.so: turns the sockets of programs that know nothing of RDMA into rsockets.
//!
//! ```text
//!   program ---- socket, connect, read, poll ... ----> this library
//!                                                        |         |
//!                                       r* of librdmacm.so.1       libc's own
//! ```
//!
//! What a program gets from `socket` is a socket of the kernel, with an rsocket behind
//! it (`map`). So the number is a real one, any option can be set, and if nobody
//! answers over RDMA, the kernel's socket is used and the rsocket forgotten.
//!
//! It runs inside every function that a program has: what is not an rsocket costs a look
//! at a table, without locks. Calls that librdmacm makes itself go straight to
//! libc (`inside`). Which sockets become rsockets is for `config` to say.
//!
//! Connections over RDMA do not survive a `fork`. With `RDMAV_FORK_SAFE=1`, on both
//! sides, a connection begins as one over TCP and is exchanged for an rsocket when it is
//! first used: by then a server has forked (`fork`).

#![allow(clippy::missing_safety_doc)] // the manual pages say what pointers must be
#![allow(unreachable_pub)] // programs reach exported functions by name

mod config;
mod control;
mod epoll;
mod fork;
mod inside;
mod lifetime;
mod map;
mod next;
mod rsockets;
mod transfer;
mod waiting;
