//! rsockets: sockets over RDMA, with the functions of `rdma/rsocket.h`.

#![allow(dead_code)] // the sockets that use them come next

mod address;
mod flow;
mod settings;
mod wire;
