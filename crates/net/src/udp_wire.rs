//! [`UdpWire`]: the wire of a program, over UDP sockets.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use ferroce_roce::Path;

use crate::wire::{IpIds, Properties, Scope, Source, Wire, WireSender};
use crate::{IncomingRun, RUN_LIMITS, Receiver, SendError, Sender};

/// Ports tried until one is free for both IP families.
const CANDIDATES: usize = 8;

/// A slot's sockets on port 4791, and sockets to send from.
pub struct UdpWire {
    receiver: Receiver,
    /// Until the shard takes it.
    sender: Option<UdpSender>,
    ip_ids: IpIds,
    /// Index of the link's netdev, for addresses that have a meaning only on one netdev.
    ifindex: u32,
}

/// The sockets to send from.
pub struct UdpSender {
    sender: Sender,
    ifindex: u32,
}

impl UdpWire {
    /// Creates the wire of a link on the netdev `ifindex`.
    pub fn new(receiver: Receiver, sender: Sender, ifindex: u32) -> UdpWire {
        UdpWire {
            receiver,
            ip_ids: match sender.ids_in_run() {
                true => IpIds::Numbered,
                false => IpIds::Zero,
            },
            sender: Some(UdpSender { sender, ifindex }),
            ifindex,
        }
    }

    /// Returns the index of the link's netdev.
    pub(crate) fn ifindex(&self) -> u32 {
        self.ifindex
    }
}

impl UdpSender {
    /// Binds sockets of both IP families to the same source port.
    fn bind_both(&mut self, want: u16) -> io::Result<u16> {
        let mut want = want;
        for _ in 0..CANDIDATES {
            let v4 = self.sender.bind(want, false)?;
            match self.sender.bind(v4, true) {
                Ok(v6) if v6 == v4 => return Ok(v4),
                Ok(v6) => want = v6,
                Err(error) => {
                    tracing::debug!("datagrams travel over IPv4 only: {error}");
                    return Ok(v4);
                }
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "no UDP source port is free for both IPv4 and IPv6",
        ))
    }
}

impl Wire for UdpWire {
    type Sender = UdpSender;

    fn take_sender(&mut self) -> UdpSender {
        self.sender.take().expect("a wire has one sending half")
    }

    #[inline]
    fn receive(
        &mut self,
        scope: Scope,
        max: usize,
        each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        match scope {
            Scope::AllFamilies => self.receiver.receive(max, each),
            Scope::EitherFamily => self.receiver.receive_either(max, each),
            Scope::LastFamily => self.receiver.receive_more(max, each),
            Scope::OneMessage => self.receiver.receive_busy(max, each),
            Scope::Memory => Ok(0),
        }
    }

    #[inline]
    fn look(&mut self, scope: Scope) -> io::Result<bool> {
        match scope {
            Scope::OneMessage => self.receiver.look(),
            Scope::Memory => Ok(false),
            Scope::AllFamilies | Scope::EitherFamily | Scope::LastFamily => Ok(true),
        }
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let sockets = self.receiver.sockets().try_clone()?;
        Ok(core::iter::once(sockets.v4).chain(sockets.v6).collect())
    }

    fn join_multicast(&mut self, group: IpAddr) -> io::Result<()> {
        self.receiver.join_multicast(group, self.ifindex)
    }

    fn leave_multicast(&mut self, group: IpAddr) -> io::Result<()> {
        self.receiver.leave_multicast(group, self.ifindex)
    }

    fn report_hop_limits(&mut self, report: bool) -> io::Result<()> {
        self.receiver.show_hop_limits(report)
    }

    fn properties(&self) -> Properties {
        Properties {
            slot: self.receiver.slot(),
            receive_buffer: self.receiver.buffer(),
            ip_ids: self.ip_ids,
            run_limits: RUN_LIMITS,
        }
    }
}

impl WireSender for UdpSender {
    #[inline]
    fn send(&mut self, path: &Path, segment: usize, bytes: &[u8]) -> Result<(), SendError> {
        // Only multicast and link-local addresses need the netdev; others are routed.
        let scoped = match path.flow.destination {
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_multicast(),
            IpAddr::V4(v4) => v4.is_multicast(),
        };
        let ifindex = scoped.then_some(self.ifindex);
        self.sender.send_run(path, segment, bytes, ifindex)
    }

    fn bind(&mut self, want: u16, source: Source) -> io::Result<u16> {
        match source {
            Source::Address(address) => self.sender.bind_from(want, address),
            Source::Any => self.bind_both(want),
        }
    }
}
