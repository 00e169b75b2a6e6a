//! Options of stream sockets.

use core::ffi::c_int;
use std::sync::Arc;

use crate::ffi::*;

use super::core::{Core, Phase};
use super::{Stream, keepalive};
use crate::rsocket::connection::Plan;
use crate::rsocket::option_value::{OptionValue, int_of};
use crate::rsocket::queue::Sizes;
use crate::rsocket::settings::{Settings, buffer_size, queue_size};
use crate::rsocket::wire::iomap_capacity;
use crate::rsocket::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};

/// What a program has chosen. An accepted socket begins with those of its listener.
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
    /// Seconds of silence.
    keepalive_time: u32,
    /// Seconds that closing may take.
    pub(super) linger: Option<c_int>,
    /// A path record, chosen by the program.
    pub(super) route: Option<Vec<u8>>,
}

/// As TCP has it, unless somebody says otherwise.
const KEEPALIVE_TIME: u32 = 7200;

impl Options {
    pub(crate) fn new(settings: &Settings) -> Options {
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
    pub(crate) fn set_option(
        self: &Arc<Self>,
        level: c_int,
        name: c_int,
        value: &[u8],
    ) -> Result<(), c_int> {
        let mut core = self.lock();
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
                core.options.keepalive = int_of(value)? != 0;
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                let seconds = u32::try_from(int_of(value)?).ok().filter(|s| *s > 0);
                core.options.keepalive_time = seconds.ok_or(libc::EINVAL)?;
            }
            (libc::SOL_SOCKET, _) => return self.set_socket_option(&mut core, name, value),
            (SOL_RDMA, _) => return set_rdma_option(&mut core, name, value),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
                core.options.no_delay = int_of(value)? != 0;
                return Ok(());
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                core.options.max_segment = Some(int_of(value)?);
                return Ok(());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                let only = int_of(value)?;
                let bytes = only.to_ne_bytes();
                self.id
                    .set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &bytes)?;
                core.options.v6_only = only != 0;
                return Ok(());
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let service = int_of(value)?;
                let bytes = [service as u8];
                self.id
                    .set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &bytes)?;
                core.options.type_of_service = service;
                return Ok(());
            }
            _ => return Err(libc::ENOTSUP),
        }
        let (on, seconds) = (core.options.keepalive, core.options.keepalive_time);
        drop(core);
        keepalive::set(self, on.then_some(seconds))
    }

    fn set_socket_option(&self, core: &mut Core, name: c_int, value: &[u8]) -> Result<(), c_int> {
        // Twice what is asked for, like the kernel: each half is a buffer of its own.
        let size = |value| {
            let wanted = int_of(value).map(|wanted| u32::try_from(wanted).unwrap_or(0));
            wanted.map(|wanted| buffer_size(wanted.saturating_mul(2)))
        };
        match name {
            libc::SO_REUSEADDR => {
                let reuse = int_of(value)?;
                let bytes = reuse.to_ne_bytes();
                self.id
                    .set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &bytes)?;
                core.options.reuse_address = reuse != 0;
            }
            // The buffers of a connection are what they were when it was made.
            libc::SO_RCVBUF => core.options.receive_buffer = size(value)?,
            libc::SO_SNDBUF => core.options.send_buffer = size(value)?,
            libc::SO_OOBINLINE => core.options.oob_inline = int_of(value)? != 0,
            libc::SO_LINGER => {
                let (on, seconds) = (value.get(..4), value.get(4..8));
                let (on, seconds) = (on.ok_or(libc::EINVAL)?, seconds.ok_or(libc::EINVAL)?);
                core.options.linger = match int_of(on)? {
                    0 => None,
                    _ => Some(int_of(seconds)?),
                };
            }
            _ => return Err(libc::ENOTSUP),
        }
        Ok(())
    }

    pub(crate) fn option(&self, level: c_int, name: c_int) -> Result<OptionValue, c_int> {
        let mut core = self.lock();
        let options = &core.options;
        let number = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                core.step(&self.id, true);
                core.error.take().unwrap_or(0)
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
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => self.family,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => (core.phase == Phase::Listening).into(),
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
                let route = options.route.clone().ok_or(libc::ENOTSUP)?;
                return Ok(OptionValue::Bytes(route));
            }
            _ => return Err(libc::ENOTSUP),
        };
        Ok(OptionValue::Int(number))
    }
}

/// Sizes of things that are made with the connection.
fn set_rdma_option(core: &mut Core, name: c_int, value: &[u8]) -> Result<(), c_int> {
    if core.connection.is_some() {
        return Err(libc::EINVAL);
    }
    if name == RDMA_ROUTE {
        core.options.route = Some(value.to_vec());
        return Ok(());
    }
    let number = u32::try_from(int_of(value)?).map_err(|_| libc::EINVAL)?;
    match name {
        RDMA_SQSIZE => core.options.send_queue = queue_size(number),
        RDMA_RQSIZE => core.options.receive_queue = queue_size(number),
        RDMA_INLINE => core.options.inline = number.min(u16::MAX.into()) as u16,
        RDMA_IOMAPSIZE => core.options.iomaps = iomap_capacity(number),
        _ => return Err(libc::ENOTSUP),
    }
    Ok(())
}
