//! A wire without a network.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use ferroce_net::{
    Incoming, IncomingRun, IpIds, Properties, RUN_LIMITS, Scope, SendError, Source, Wire,
    WireSender,
};
use ferroce_roce::{Datagram, IpId, Path};

/// Address of both ends.
pub(crate) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A wire that receives every run that it sends.
#[derive(Clone, Default)]
pub(crate) struct Loopback {
    /// The runs that were sent and not yet received.
    pub(crate) runs: Rc<RefCell<VecDeque<SentRun>>>,
    /// True if no run finds room.
    pub(crate) is_full: Rc<Cell<bool>>,
}

/// Path, segment size and bytes of a run.
type SentRun = (Path, usize, Vec<u8>);

impl Wire for Loopback {
    type Sender = Loopback;

    fn take_sender(&mut self) -> Loopback {
        self.clone()
    }

    fn receive(
        &mut self,
        _: Scope,
        _: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        let mut count = 0;
        let runs = self.runs.take();
        for (path, segment, bytes) in runs {
            let datagram = Datagram {
                source: path.flow.source,
                destination: path.flow.destination,
                source_port: path.flow.source_port,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                ip_id: IpId::UNSEEN,
                payload: &bytes,
            };
            let merged = Incoming {
                datagram,
                ifindex: 1,
            };
            each(&IncomingRun { merged, segment });
            count += bytes.len().div_ceil(segment);
        }
        Ok(count)
    }

    fn look(&mut self, _: Scope) -> io::Result<bool> {
        Ok(!self.runs.borrow().is_empty())
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(Vec::new())
    }

    fn join_multicast(&mut self, _: IpAddr) -> io::Result<()> {
        Ok(())
    }

    fn leave_multicast(&mut self, _: IpAddr) -> io::Result<()> {
        Ok(())
    }

    fn report_hop_limits(&mut self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn properties(&self) -> Properties {
        Properties {
            slot: 1,
            receive_buffer: 1 << 20,
            ip_ids: IpIds::Numbered,
            run_limits: RUN_LIMITS,
        }
    }
}

impl WireSender for Loopback {
    fn send(&mut self, path: &Path, segment: usize, bytes: &[u8]) -> Result<(), SendError> {
        if self.is_full.get() {
            return Err(SendError::WouldBlock);
        }
        let run = (*path, segment, bytes.to_vec());
        self.runs.borrow_mut().push_back(run);
        Ok(())
    }

    fn bind(&mut self, want: u16, _: Source) -> io::Result<u16> {
        Ok(want)
    }
}
