//! Options of stream sockets.

use core::ffi::c_int;
use std::sync::Arc;

use super::state::{Phase, State};
use super::{Stream, keepalive};
use crate::cm;
use crate::connection::Plan;
use crate::option::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};
use crate::option_value::{OptionValue, int_of};
use crate::queue::Sizes;
use crate::settings::{Settings, buffer_size, queue_size};
use crate::wire::iomap_capacity;
use crate::{Errno, Result};

/// The options of a socket. An accepted socket starts with those of its listener.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    receive_buffer: u32,
    send_buffer: u32,
    send_queue: u16,
    receive_queue: u16,
    inline: u16,
    iomaps: u32,
    reuse_address: bool,
    oob_inline: bool,
    no_delay: bool,
    max_segment: Option<c_int>,
    v6_only: bool,
    type_of_service: c_int,
    keepalive: bool,
    /// Seconds between keepalives.
    keepalive_time: u32,
    /// Linger time in seconds.
    pub(super) linger: Option<c_int>,
    /// Path records from the program.
    pub(super) route: Option<Vec<u8>>,
}

/// TCP's default time between keepalives in seconds.
const KEEPALIVE_TIME: u32 = 7200;

impl Options {
    pub(super) fn new(settings: &Settings) -> Options {
        Options {
            receive_buffer: settings.receive_buffer,
            send_buffer: settings.send_buffer,
            send_queue: settings.send_queue,
            receive_queue: settings.receive_queue,
            inline: settings.inline,
            iomaps: settings.iomaps,
            reuse_address: false,
            oob_inline: false,
            no_delay: false,
            max_segment: None,
            v6_only: false,
            type_of_service: 0,
            keepalive: false,
            keepalive_time: KEEPALIVE_TIME,
            linger: None,
            route: None,
        }
    }

    pub(super) fn plan(&self) -> Plan {
        Plan {
            queues: Sizes {
                send: self.send_queue.into(),
                receive: self.receive_queue.into(),
                inline: self.inline.into(),
            },
            receive_buffer: self.receive_buffer,
            send_buffer: self.send_buffer,
            iomaps: self.iomaps,
        }
    }
}

impl Stream {
    /// Sets a socket option, by the numbers of `setsockopt`.
    ///
    /// # Errors
    ///
    /// ENOTSUP for an unknown option, EINVAL for a bad value.
    pub fn set_option(self: &Arc<Self>, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
        let mut state = self.lock();
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
                state.options.keepalive = int_of(value)? != 0;
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                let seconds = u32::try_from(int_of(value)?).ok().filter(|s| *s > 0);
                state.options.keepalive_time = seconds.ok_or(Errno::INVAL)?;
            }
            (libc::SOL_SOCKET, _) => return self.set_socket_option(&mut state, name, value),
            (SOL_RDMA, _) => return set_rdma_option(&mut state, name, value),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
                state.options.no_delay = int_of(value)? != 0;
                return Ok(());
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                state.options.max_segment = Some(int_of(value)?);
                return Ok(());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                let only = int_of(value)? != 0;
                self.id.inner().set_af_only(only).map_err(cm::errno)?;
                state.options.v6_only = only;
                return Ok(());
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let service = int_of(value)?;
                let set = self.id.inner().set_type_of_service(service as u8);
                set.map_err(cm::errno)?;
                state.options.type_of_service = service;
                return Ok(());
            }
            _ => return Err(Errno::NOTSUP),
        }
        let (on, seconds) = (state.options.keepalive, state.options.keepalive_time);
        drop(state);
        keepalive::set(self, on.then_some(seconds));
        Ok(())
    }

    fn set_socket_option(&self, state: &mut State, name: c_int, value: &[u8]) -> Result<()> {
        // Twice the value, as the kernel does: the ring is published in halves.
        let size = |value| {
            let wanted = int_of(value).map(|wanted| u32::try_from(wanted).unwrap_or(0));
            wanted.map(|wanted| buffer_size(wanted.saturating_mul(2)))
        };
        match name {
            libc::SO_REUSEADDR => {
                let reuse = int_of(value)? != 0;
                let set = self.id.inner().set_reuse_address(reuse);
                set.map_err(cm::errno)?;
                state.options.reuse_address = reuse;
            }
            // Takes effect with the next connection.
            libc::SO_RCVBUF => state.options.receive_buffer = size(value)?,
            libc::SO_SNDBUF => state.options.send_buffer = size(value)?,
            libc::SO_OOBINLINE => state.options.oob_inline = int_of(value)? != 0,
            libc::SO_LINGER => {
                let (on, seconds) = (value.get(..4), value.get(4..8));
                let (on, seconds) = (on.ok_or(Errno::INVAL)?, seconds.ok_or(Errno::INVAL)?);
                state.options.linger = match int_of(on)? {
                    0 => None,
                    _ => Some(int_of(seconds)?),
                };
            }
            _ => return Err(Errno::NOTSUP),
        }
        Ok(())
    }

    /// Returns a socket option, by the numbers of `getsockopt`.
    ///
    /// # Errors
    ///
    /// ENOTSUP for an unknown option.
    pub fn option(&self, level: c_int, name: c_int) -> Result<OptionValue> {
        let mut state = self.lock();
        let options = &state.options;
        let number = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                state.step(&self.id, true);
                state.error.take().map_or(0, Errno::raw_os_error)
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let mut bytes = Vec::from(c_int::from(options.linger.is_some()).to_ne_bytes());
                bytes.extend(options.linger.unwrap_or(0).to_ne_bytes());
                return Ok(OptionValue::Bytes(bytes));
            }
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse_address.into(),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => options.receive_buffer as c_int,
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => options.send_buffer as c_int,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keepalive.into(),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline.into(),
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => self.family.as_raw().into(),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => (state.phase == Phase::Listening).into(),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay.into(),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => options.keepalive_time as c_int,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => options.max_segment.unwrap_or(2048),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.v6_only.into(),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                options.type_of_service
            }
            (SOL_RDMA, RDMA_SQSIZE) => options.send_queue.into(),
            (SOL_RDMA, RDMA_RQSIZE) => options.receive_queue.into(),
            (SOL_RDMA, RDMA_INLINE) => options.inline.into(),
            (SOL_RDMA, RDMA_IOMAPSIZE) => options.iomaps as c_int,
            (SOL_RDMA, RDMA_ROUTE) => {
                let route = options.route.clone().ok_or(Errno::NOTSUP)?;
                return Ok(OptionValue::Bytes(route));
            }
            _ => return Err(Errno::NOTSUP),
        };
        Ok(OptionValue::Int(number))
    }
}

/// Sets a size that takes effect when the connection is created.
fn set_rdma_option(state: &mut State, name: c_int, value: &[u8]) -> Result<()> {
    if state.connection.is_some() {
        return Err(Errno::INVAL);
    }
    if name == RDMA_ROUTE {
        state.options.route = Some(value.to_vec());
        return Ok(());
    }
    let number = u32::try_from(int_of(value)?).map_err(|_| Errno::INVAL)?;
    match name {
        RDMA_SQSIZE => state.options.send_queue = queue_size(number),
        RDMA_RQSIZE => state.options.receive_queue = queue_size(number),
        RDMA_INLINE => state.options.inline = number.min(u16::MAX.into()) as u16,
        RDMA_IOMAPSIZE => state.options.iomaps = iomap_capacity(number),
        _ => return Err(Errno::NOTSUP),
    }
    Ok(())
}
