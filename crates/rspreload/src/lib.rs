//! librspreload.so: turns the sockets of programs without RDMA into rsockets.
//!
//! ```text
//!   program ---- socket, connect, read, poll ... ----> this library
//!                                                        |         |
//!                                       r* of librdmacm.so.1       libc's own
//! ```
//!
//! `socket` returns a socket of the kernel, and `map` records the rsocket behind it. So the
//! descriptor is valid for the kernel, any option can be set, and if no peer answers over
//! RDMA, the kernel's socket is used and the rsocket closed.
//!
//! Every `read` and `write` of the program passes through the library. For other descriptors
//! that costs a look at a table, without locks. Calls of librdmacm itself go straight to libc
//! (`inside`). `config` selects the sockets that become rsockets.
//!
//! Connections over RDMA do not survive a `fork`. With `RDMAV_FORK_SAFE=1` on both sides, a
//! connection begins over TCP and is replaced by an rsocket when it is first used: by then a
//! server has forked (`fork`).

#![allow(clippy::missing_safety_doc)] // the manual pages specify the pointers
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
