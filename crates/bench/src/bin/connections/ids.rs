//! Wrappers of rdma_cm's event channels and ids.

use core::ptr;
use std::io;
use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

/// An event channel, which is never destroyed.
#[derive(Copy, Clone)]
pub(crate) struct Channel(*mut rdma_event_channel);

/// An rdma_cm id. The caller destroys it explicitly, and uses no copy after that.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Id(*mut rdma_cm_id);

/// An event of an id.
pub(crate) struct Event {
    pub(crate) id: Id,
    pub(crate) what: u32,
    pub(crate) status: i32,
}

/// Converts the return value of a call that sets errno.
fn good(code: i32, what: &'static str) -> Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context(what),
    }
}

impl Channel {
    pub(crate) fn new() -> Result<Channel> {
        // SAFETY: a call without arguments.
        let channel = unsafe { rdma_create_event_channel() };
        if channel.is_null() {
            return Err(io::Error::last_os_error()).context("rdma_create_event_channel");
        }
        Ok(Channel(channel))
    }

    /// Waits for the next event, and acknowledges it.
    pub(crate) fn next(self) -> Result<Event> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is never destroyed; the event is read before it is
        // acknowledged, and only if there is one.
        unsafe {
            good(
                rdma_get_cm_event(self.0, &raw mut event),
                "rdma_get_cm_event",
            )?;
            let seen = Event {
                id: Id((*event).id),
                what: (*event).event,
                status: (*event).status,
            };
            good(rdma_ack_cm_event(event), "rdma_ack_cm_event")?;
            Ok(seen)
        }
    }

    /// Waits for the next event, and checks that it is this event of this id.
    pub(crate) fn expect(self, id: Id, what: u32) -> Result<()> {
        let event = self.next()?;
        if (event.id, event.what, event.status) != (id, what, 0) {
            bail!("event {} ({}) instead of {what}", event.what, event.status);
        }
        Ok(())
    }

    pub(crate) fn id(self) -> Result<Id> {
        let mut id = ptr::null_mut();
        // SAFETY: the channel is never destroyed, and `id` is a local variable.
        let code = unsafe { rdma_create_id(self.0, &raw mut id, ptr::null_mut(), RDMA_PS_TCP) };
        good(code, "rdma_create_id")?;
        Ok(Id(id))
    }
}

impl Id {
    /// Listens on loopback on a free port, and returns the port.
    pub(crate) fn listen(self) -> Result<u16> {
        let mut address = loopback(0);
        // SAFETY: the id exists, and the address outlives the calls.
        unsafe {
            good(
                rdma_bind_addr(self.0, (&raw mut address).cast()),
                "rdma_bind_addr",
            )?;
            good(rdma_listen(self.0, 1024), "rdma_listen")?;
            Ok(u16::from_be(rdma_get_src_port(self.0)))
        }
    }

    pub(crate) fn resolve_address(self, port: u16) -> Result<()> {
        let mut to = loopback(port);
        let to = (&raw mut to).cast();
        // SAFETY: as for `listen`.
        let code = unsafe { rdma_resolve_addr(self.0, ptr::null_mut(), to, 2000) };
        good(code, "rdma_resolve_addr")
    }

    pub(crate) fn resolve_route(self) -> Result<()> {
        // SAFETY: the id exists.
        good(
            unsafe { rdma_resolve_route(self.0, 2000) },
            "rdma_resolve_route",
        )
    }

    /// Creates a small queue pair with its own completion queues.
    pub(crate) fn queue_pair(self) -> Result<()> {
        // SAFETY: the C structure has only integers and pointers, for which zero is valid.
        let mut init: ibv_qp_init_attr = unsafe { core::mem::zeroed() };
        init.cap.max_send_wr = 4;
        init.cap.max_recv_wr = 4;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        // SAFETY: the id exists, and the attributes outlive the call.
        unsafe {
            init.qp_type = (*self.0).qp_type;
            let code = rdma_create_qp(self.0, ptr::null_mut(), &raw mut init);
            good(code, "rdma_create_qp")
        }
    }

    pub(crate) fn connect(self) -> Result<()> {
        // SAFETY: the id exists, and the parameters outlive the call.
        let code = unsafe { rdma_connect(self.0, &mut parameters()) };
        good(code, "rdma_connect")
    }

    pub(crate) fn accept(self) -> Result<()> {
        // SAFETY: as for `connect`.
        let code = unsafe { rdma_accept(self.0, &mut parameters()) };
        good(code, "rdma_accept")
    }

    pub(crate) fn disconnect(self) -> Result<()> {
        // SAFETY: the id exists.
        good(unsafe { rdma_disconnect(self.0) }, "rdma_disconnect")
    }

    /// Destroys the id and its queue pair.
    pub(crate) fn destroy(self) -> Result<()> {
        // SAFETY: the id exists, and no copy of it is used afterwards.
        unsafe {
            if !(*self.0).qp.is_null() {
                rdma_destroy_qp(self.0);
            }
            good(rdma_destroy_id(self.0), "rdma_destroy_id")
        }
    }
}

fn parameters() -> rdma_conn_param {
    // SAFETY: the C structure has only integers and pointers, for which zero is valid.
    let mut parameters: rdma_conn_param = unsafe { core::mem::zeroed() };
    parameters.responder_resources = 1;
    parameters.initiator_depth = 1;
    parameters.retry_count = 7;
    parameters.rnr_retry_count = 7;
    parameters
}

fn loopback(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: Ipv4Addr::LOCALHOST.to_bits().to_be(),
        },
        sin_zero: [0; 8],
    }
}
