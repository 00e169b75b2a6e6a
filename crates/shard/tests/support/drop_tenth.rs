//! A wrapper over any wire that drops every tenth received packet.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use ferroce_net::{IncomingRun, Properties, Scope, Wire};

/// A wire that drops every tenth packet that `inner` receives.
pub(crate) struct DropTenth<W> {
    pub(crate) inner: W,
    pub(crate) received: usize,
}

impl<W> DropTenth<W> {
    pub(crate) fn new(inner: W) -> DropTenth<W> {
        DropTenth { inner, received: 0 }
    }
}

impl<W: Wire> Wire for DropTenth<W> {
    type Sender = W::Sender;

    fn take_sender(&mut self) -> W::Sender {
        self.inner.take_sender()
    }

    fn receive(
        &mut self,
        scope: Scope,
        max: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        let received = &mut self.received;
        let mut passed = 0;
        self.inner.receive(scope, max, |run| {
            for merged in run.datagrams() {
                *received += 1;
                if !received.is_multiple_of(10) {
                    passed += 1;
                    let segment = merged.payload.len();
                    each(&IncomingRun { merged, segment });
                }
            }
        })?;
        Ok(passed)
    }

    fn look(&mut self, scope: Scope) -> io::Result<bool> {
        self.inner.look(scope)
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.inner.descriptors()
    }

    fn join_multicast(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.join_multicast(group)
    }

    fn leave_multicast(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.leave_multicast(group)
    }

    fn report_hop_limits(&mut self, report: bool) -> io::Result<()> {
        self.inner.report_hop_limits(report)
    }

    fn is_memory_busy(&self) -> bool {
        self.inner.is_memory_busy()
    }

    fn has_packet_in_memory(&self) -> bool {
        self.inner.has_packet_in_memory()
    }

    fn properties(&self) -> Properties {
        self.inner.properties()
    }
}
