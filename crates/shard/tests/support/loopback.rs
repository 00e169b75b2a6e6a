//! A wire without a network.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;

use ferroce_net::{
    Incoming, IncomingRun, IpIds, Properties, RUN_LIMITS, Scope, SendError, Source, Wire,
};
use ferroce_roce::{Datagram, IpId, Path};

/// Address of both ends.
pub(crate) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A wire that receives every run that it sends.
#[derive(Default)]
pub(crate) struct Loopback(pub(crate) VecDeque<(Path, usize, Vec<u8>)>);

impl Wire for Loopback {
    fn receive(
        &mut self,
        _: Scope,
        _: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        let mut count = 0;
        while let Some((path, segment, bytes)) = self.0.pop_front() {
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

    fn send(&mut self, path: &Path, segment: usize, bytes: &[u8]) -> Result<(), SendError> {
        self.0.push_back((*path, segment, bytes.to_vec()));
        Ok(())
    }

    fn bind(&mut self, want: u16, _: Source) -> io::Result<u16> {
        Ok(want)
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
