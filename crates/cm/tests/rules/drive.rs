//! Interprets arbitrary bytes as messages to and calls on one node. Used by proptest and by
//! the fuzzer in `fuzz/`.
//!
//! About half of the messages name existing connections, so that they reach as many states
//! as possible. At the end, all connections are destroyed and all deadlines pass; then the
//! node must have no state left.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ferroce_cm::{
    Accept, Address, Cm, Config, ConnId, Event, Gid, ListenAddress, Mad, PrivateData, Reason,
    Request, SidrId, SidrRequest, State, Time,
};

const US: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const ADDRESS: Address = Address {
    local: US,
    remote: PEER,
};
const SERVICE: u64 = 0x0106_0001;
const BACKLOG: usize = 8;
const QPN: u8 = 7;

struct Node {
    cm: Cm,
    now: Time,
    conns: Vec<ConnId>,
    sidrs: Vec<SidrId>,
    last: [u8; 256],
    seen: BTreeSet<State>,
}

/// Executes the messages and calls in `data`. Returns the states that connections reached.
pub(crate) fn drive(data: &[u8]) -> BTreeSet<State> {
    let mut cm = Cm::new(Config::new(1), [3; 32]);
    cm.listen(SERVICE, ListenAddress::Any, BACKLOG).unwrap();
    let mut node = Node {
        cm,
        now: Duration::ZERO,
        conns: Vec::new(),
        sidrs: Vec::new(),
        last: [0; 256],
        seen: BTreeSet::new(),
    };
    let mut rest = data;
    while let [op, pick, tail @ ..] = rest {
        let used = node.step(*op, *pick, tail);
        rest = &tail[used.min(tail.len())..];
        node.collect();
    }
    node.finish()
}

impl Node {
    fn conn(&self, pick: u8) -> Option<ConnId> {
        let count = self.conns.len().max(1);
        self.conns.get(usize::from(pick) % count).copied()
    }

    /// Executes one message or call. Returns the number of bytes of `tail` that it used.
    fn step(&mut self, op: u8, pick: u8, tail: &[u8]) -> usize {
        let now = self.now;
        let conn = self.conn(pick);
        match (op % 12, conn) {
            (0, _) => {
                let request = Request::new(ADDRESS, SERVICE, QPN.into());
                let conn = self.cm.connect(now, &request);
                self.conns.push(conn);
            }
            (1, Some(conn)) => {
                let _ = self.cm.accept(now, conn, &Accept::new(QPN.into()));
            }
            (2, Some(conn)) => {
                let none = PrivateData::EMPTY;
                let _ = self.cm.reject(now, conn, Reason::CONSUMER, tail, none);
            }
            (3, Some(conn)) => {
                let _ = self.cm.establish(conn, PrivateData::EMPTY);
            }
            (4, Some(conn)) => {
                let _ = self.cm.disconnect(now, conn, PrivateData::EMPTY);
            }
            (5, Some(conn)) => {
                let _ = self.cm.destroy(now, conn);
            }
            (6, Some(conn)) => {
                let _ = self.cm.communication_established(conn);
            }
            (7, _) => {
                let request = SidrRequest {
                    address: ADDRESS,
                    service_id: SERVICE,
                    private_data: PrivateData::EMPTY,
                };
                let sidr = self.cm.sidr_request(now, &request);
                self.sidrs.push(sidr);
            }
            (8, _) => {
                self.now += Duration::from_millis(u64::from(pick) * 100);
                self.cm.handle_timeout(self.now);
            }
            _ => return self.message(pick, tail),
        }
        0
    }

    /// Delivers a message that is made from the node's last message, with some bytes changed.
    fn message(&mut self, pick: u8, tail: &[u8]) -> usize {
        let mut mad = self.last;
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        let attribute = 0x10 + pick % 11;
        mad[16..18].copy_from_slice(&[0, attribute]);
        if let 0x10 | 0x17 = attribute {
            mad[32..40].copy_from_slice(&SERVICE.to_be_bytes());
        }
        match attribute {
            // A REQ from a different queue pair each time, with the GIDs of our path.
            0x10 => {
                mad[27] ^= pick;
                mad[56..59].copy_from_slice(&[0, 1, pick]);
                mad[80..96].copy_from_slice(&Gid::from(PEER).0);
                mad[96..112].copy_from_slice(&Gid::from(US).0);
            }
            // An MRA to a REQ or to a REP.
            0x11 => mad[32] = pick & 0x40,
            // A DREQ for the queue pair of all connections of this node.
            0x15 => mad[32..35].copy_from_slice(&[0, 0, QPN]),
            _ => {}
        }
        let changes = tail.first().map_or(0, |n| usize::from(n % 16));
        for change in tail
            .get(1..)
            .unwrap_or_default()
            .chunks_exact(2)
            .take(changes)
        {
            mad[usize::from(change[0])] = change[1];
        }
        if let (true, Some(conn)) = (pick & 0x40 != 0, self.conn(pick)) {
            mad[28..32].copy_from_slice(&conn.comm_id().to_be_bytes());
        }
        let _ = self.cm.receive(self.now, ADDRESS, &mad);
        1 + changes * 2
    }

    fn collect(&mut self) {
        let states = self.conns.iter().filter_map(|conn| self.cm.state(*conn));
        self.seen.extend(states);
        while let Some(transmit) = self.cm.poll_transmit() {
            assert_eq!(transmit.address, ADDRESS);
            assert!(Mad::decode(&transmit.mad[..]).is_ok());
            self.last = *transmit.mad;
            // Swap the IDs, as in an answer: the peer's ID comes first and is not 0.
            let (front, back) = self.last.split_at_mut(28);
            front[24..].swap_with_slice(&mut back[..4]);
            if front[24..] == [0; 4] {
                front[24] = 0x99;
            }
        }
        while let Some(event) = self.cm.poll_event() {
            self.conns.extend(match &event {
                Event::Request(incoming) => Some(incoming.conn),
                _ => None,
            });
            self.sidrs.extend(match &event {
                Event::SidrRequest(incoming) => Some(incoming.sidr),
                _ => None,
            });
        }
    }

    /// Destroys all connections, lets all deadlines pass, and checks that no state is left.
    fn finish(mut self) -> BTreeSet<State> {
        for conn in &self.conns {
            let _ = self.cm.destroy(self.now, *conn);
        }
        for sidr in &self.sidrs {
            let _ = self.cm.sidr_destroy(self.now, *sidr);
        }
        self.collect();
        let mut steps = 0;
        while let Some(at) = self.cm.next_timeout() {
            assert!(at >= self.now, "a deadline that has passed");
            self.now = at;
            self.cm.handle_timeout(at);
            self.collect();
            steps += 1;
            assert!(steps < 100_000, "the deadlines never end");
        }
        assert!(self.cm.is_idle(), "{:?}", self.cm);
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ferroce_cm::State;
    use proptest::prelude::*;
    use proptest::test_runner::{
        Config, FileFailurePersistence, RngAlgorithm, TestRng, TestRunner,
    };

    #[test]
    fn arbitrary_messages_and_calls_leave_no_state() {
        let config = Config {
            cases: 5000,
            failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
            ..Config::default()
        };
        let seen = std::cell::RefCell::new(BTreeSet::new());
        let bytes = prop::collection::vec(any::<u8>(), 0..600);
        // A fixed seed, so that the test can assert which states are reached. The fuzzer
        // explores other inputs.
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        TestRunner::new_with_rng(config, rng)
            .run(&bytes, |data| {
                seen.borrow_mut().extend(super::drive(&data));
                Ok(())
            })
            .unwrap();
        // `collect` polls events at once, so ReqRcvd and RepRcvd are not observed.
        let reached = [
            State::ReqSent,
            State::MraReqRcvd,
            State::MraRepSent,
            State::MraReqSent,
            State::RepSent,
            State::MraRepRcvd,
            State::Established,
            State::DreqSent,
            State::DreqRcvd,
            State::Timewait,
        ];
        assert!(
            seen.borrow().is_superset(&BTreeSet::from(reached)),
            "{seen:?}"
        );
    }
}
