//! Unmatched packets belong to the connection that they arrived in.

#[path = "support/connection.rs"]
#[allow(dead_code)] // other tests use the rest
mod connection;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use connection::End;
use ferroce_net::{
    Incoming, IncomingRun, IpIds, Properties, RUN_LIMITS, Scope, SendError, Source, Wire,
};
use ferroce_roce::{
    AttrMask, Datagram, IpId, Path, QpAttr, QpState, QpType, RecvWr, SendData, SendFlags, SendOp,
    SendWr, Time,
};
use ferroce_shard::Caller;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A wire that receives every run that it sends.
#[derive(Default)]
struct Loopback(VecDeque<(Path, usize, Vec<u8>)>);

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

/// Returns a UC queue pair that is its own peer and has sent a message to itself, which
/// waits for a receive.
fn with_unmatched_packet() -> End<Loopback> {
    let mut end = End::new(Loopback::default(), &Arc::default(), QpType::Uc, 0);
    end.connect(end.qpn, HERE, HERE);
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send { imm: None },
        flags: SendFlags::SIGNALED,
        data: SendData::Sges(&[end.sge(64)]),
        ud: None,
        xrc_srq: 0,
    };
    let posted = end.core.engine.post_send(Time::ZERO, end.qpn, wr);
    posted.expect("room");
    turns(&mut end);
    assert_eq!(completed(&end), [1], "the send");
    assert_eq!(end.core.held_packets(), 1);
    end
}

fn turns(end: &mut End<Loopback>) {
    for _ in 0..3 {
        end.turn(Time::ZERO, Caller::ProgressThread);
    }
}

fn post_receive(end: &mut End<Loopback>) {
    let wr = RecvWr {
        wr_id: 2,
        sges: &[end.sge(64)],
    };
    let posted = end.core.engine.post_recv(Time::ZERO, end.qpn, &wr);
    posted.expect("room");
}

/// Returns the ids of the completed work requests.
fn completed(end: &End<Loopback>) -> Vec<u64> {
    let mut ids = Vec::new();
    end.cq.poll(8, |wc| ids.push(wc.wr_id));
    ids
}

#[test]
fn unmatched_packet_is_delivered_when_a_receive_is_posted() {
    let mut end = with_unmatched_packet();
    post_receive(&mut end);
    turns(&mut end);
    assert_eq!(completed(&end), [2]);
    assert_eq!(end.core.held_packets(), 0);
}

#[test]
fn reset_drops_unmatched_packets() {
    let mut end = with_unmatched_packet();
    let reset = QpAttr {
        state: QpState::Reset,
        ..QpAttr::default()
    };
    end.modify(&reset, AttrMask::STATE);
    assert_eq!(end.core.held_packets(), 0);
    end.connect(end.qpn, HERE, HERE);
    post_receive(&mut end);
    turns(&mut end);
    assert_eq!(completed(&end), [], "of the previous connection");
}
