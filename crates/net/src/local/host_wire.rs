//! [`HostWire`]: the wire of a program, over UDP sockets and channels in shared memory.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ferroce_roce::{Counters, Path};

use super::channels::{Inbound, Outbound, gone, is_enough};
use super::doorbell::Doorbell;
use super::end::End;
use super::host_addresses::Kernel;
use super::this_process::ThisProcess;
use crate::incoming::IncomingRun;
use crate::send_error::SendError;
use crate::steering;
use crate::udp_wire::{UdpSender, UdpWire};
use crate::wire::{Properties, Scope, Source, Wire, WireSender};

/// UDP sockets, and channels to programs of this host.
pub struct HostWire {
    udp: UdpWire,
    channels: Inbound<Arc<End>, Kernel>,
    doorbell: Arc<Doorbell>,
    counters: Arc<Counters>,
    is_busy: bool,
    process: ThisProcess,
}

/// The sending half.
pub struct HostSender {
    udp: UdpSender,
    channels: Outbound<Arc<End>>,
    process: ThisProcess,
}

impl HostWire {
    /// Returns a wire without channels. `forks` counts the forks that led to this process, so
    /// that a child leaves the channels alone.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub fn new(
        udp: UdpWire,
        counters: Arc<Counters>,
        forks: &'static AtomicU32,
    ) -> io::Result<HostWire> {
        let kernel = Kernel {
            ifindex: udp.ifindex(),
        };
        Ok(HostWire {
            udp,
            channels: Inbound::new(Arc::clone(&counters), kernel),
            doorbell: Arc::new(Doorbell::new()?),
            counters,
            is_busy: false,
            process: ThisProcess::new(forks),
        })
    }

    /// Returns the descriptors and the flags for threads that sleep.
    pub fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// Adds a channel to both halves of the wire.
    ///
    /// # Errors
    /// If the kernel refuses to watch the channel.
    pub fn connect(&mut self, sender: &mut HostSender, end: &Arc<End>) -> io::Result<()> {
        self.doorbell.add(end)?;
        self.channels.add(Arc::clone(end));
        sender.channels.add(Arc::clone(end));
        Ok(())
    }

    /// Forgets closed channels. Packets that have arrived before are still received.
    pub fn remove_closed(&mut self, sender: &mut HostSender) {
        self.doorbell.remove_closed();
        self.channels.remove_closed();
        sender.channels.remove_closed();
    }
}

impl HostSender {
    /// Returns memory of channels that is not used any more to the kernel. Returns true if some is left: call it
    /// again later.
    pub fn shrink(&mut self) -> bool {
        self.process.is_current() && self.channels.shrink()
    }

    /// Writes a run into the ring of its destination.
    fn send_in_memory(
        &mut self,
        path: &Path,
        segment: usize,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        match self.process.is_current() {
            true => self.channels.send(path, segment, bytes),
            false => Err(gone(steering::slot_of(bytes))),
        }
    }
}

impl Wire for HostWire {
    type Sender = HostSender;

    fn take_sender(&mut self) -> HostSender {
        HostSender {
            udp: self.udp.take_sender(),
            channels: Outbound::new(Arc::clone(&self.counters)),
            process: self.process,
        }
    }

    #[inline]
    fn receive(
        &mut self,
        scope: Scope,
        max: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        if self.channels.is_empty() || !self.process.is_current() {
            return self.udp.receive(scope, max, each);
        }
        let count = self.channels.receive(max, &mut each);
        self.is_busy |= count > 0;
        if is_enough(scope, count) {
            return Ok(count);
        }
        let rest = max.saturating_sub(count).max(max.min(1));
        let of_sockets = self.udp.receive(scope, rest, each)?;
        if of_sockets > 0 {
            self.is_busy = false;
        }
        Ok(count + of_sockets)
    }

    /// With channels it returns true: a look at the sockets alone would not tell.
    #[inline]
    fn look(&mut self, scope: Scope) -> io::Result<bool> {
        match self.channels.is_empty() {
            true => self.udp.look(scope),
            false => Ok(true),
        }
    }

    /// Returns the sockets, and the doorbell.
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let mut fds = self.udp.descriptors()?;
        for fd in self.doorbell.descriptors() {
            fds.push(fd.try_clone_to_owned()?);
        }
        Ok(fds)
    }

    fn join_multicast(&mut self, group: IpAddr) -> io::Result<()> {
        self.udp.join_multicast(group)
    }

    fn leave_multicast(&mut self, group: IpAddr) -> io::Result<()> {
        self.udp.leave_multicast(group)
    }

    fn report_hop_limits(&mut self, report: bool) -> io::Result<()> {
        self.udp.report_hop_limits(report)
    }

    #[inline]
    fn is_memory_busy(&self) -> bool {
        self.is_busy && self.process.is_current()
    }

    #[inline]
    fn has_packet_in_memory(&self) -> bool {
        self.process.is_current() && self.channels.has_packet()
    }

    fn properties(&self) -> Properties {
        self.udp.properties()
    }
}

impl WireSender for HostSender {
    #[inline]
    fn send(&mut self, path: &Path, segment: usize, bytes: &[u8]) -> Result<(), SendError> {
        match path.in_memory {
            true => self.send_in_memory(path, segment, bytes),
            false => self.udp.send(path, segment, bytes),
        }
    }

    fn give_up(&mut self, path: &Path, bytes: &[u8]) {
        if path.in_memory && self.process.is_current() {
            self.channels.give_up(bytes);
        }
    }

    fn bind(&mut self, want: u16, source: Source) -> io::Result<u16> {
        self.udp.bind(want, source)
    }
}
