//! The weather of streams: decides the fates of FPDUs, the packets of iWARP.
//!
//! TCP loses nothing, so an FPDU is late, stays away while the network is cut, or ends the
//! connection. The receiver judges each FPDU once, when all of it has arrived.

use ferroce_wire::Transport;

use super::*;
use crate::selector::PacketKind;

/// The operation of an FPDU.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum StreamOp {
    /// SEND, with or without invalidation or solicited event.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ Request.
    Read,
    /// RDMA READ Response.
    Response,
    /// TERMINATE, or an opcode that RFC 5040 does not define.
    Other,
}

impl StreamOp {
    /// Returns the operation of an FPDU: two bytes of length, the DDP control field, and the RDMAP
    /// control field with the opcode (RFC 5040, 4.1).
    pub(crate) fn of(fpdu: &[u8]) -> StreamOp {
        match fpdu.get(3).map(|control| control & 0xf) {
            Some(0) => StreamOp::Write,
            Some(1) => StreamOp::Read,
            Some(2) => StreamOp::Response,
            Some(3..=6) => StreamOp::Send,
            _ => StreamOp::Other,
        }
    }

    /// Returns true if a kind of packets includes the operation.
    fn is(self, kind: PacketKind) -> bool {
        match kind {
            PacketKind::All | PacketKind::Packet => true,
            PacketKind::Request => {
                matches!(self, StreamOp::Send | StreamOp::Write | StreamOp::Read)
            }
            PacketKind::Send => self == StreamOp::Send,
            PacketKind::Write => self == StreamOp::Write,
            PacketKind::Read => self == StreamOp::Read,
            PacketKind::Response => self == StreamOp::Response,
            _ => false,
        }
    }
}

/// The fate of an FPDU.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamFate {
    /// Time in nanoseconds before which it does not go on; `u64::MAX` if it never does.
    pub due: u64,
    /// True if the connection is reset instead.
    pub is_reset: bool,
}

impl Weather {
    /// Creates the weather for streams.
    pub fn for_streams(plan: Arc<Plan>, counts: Arc<dyn Counts>) -> Weather {
        Weather::new(plan, counts, false)
    }

    /// Decides the fate of an FPDU that has arrived for a queue pair.
    pub fn judge_fpdu(&mut self, now: u64, peer: IpAddr, qpn: u32, fpdu: &[u8]) -> StreamFate {
        let direction = Direction::In;
        let (op, began) = (StreamOp::of(fpdu), *self.began.get_or_insert(now));
        let flows = &mut self.flows[direction as usize];
        let next = flows.len() as u64;
        let flow = *flows.entry(qpn).or_insert(next);
        let mut fate = StreamFate {
            due: now,
            is_reset: false,
        };
        for (index, rule) in self.plan.rules.iter().enumerate() {
            let select = &rule.select;
            if matches!(rule.effect, Effect::Fail { .. })
                || select.qp.is_some_and(|only| only != qpn)
                || select.peer.is_some_and(|only| only != peer)
                || select.transport.is_some_and(|only| only != Transport::Rc)
                || !op.is(select.kind)
            {
                continue;
            }
            let state = &mut self.states[index];
            if let Effect::Event(kind) = rule.effect {
                let due = self.counts.select(index) >= rule.window.after.max(1);
                if due && rule.window.at.is_none() && state.event == EventState::Due {
                    self.counts.hit(index);
                    begin_event(state, &mut self.events, rule, kind, now, qpn);
                }
                if let (EventKind::PortDown, EventState::Lasts(end)) = (kind, state.event) {
                    fate.due = fate.due.max(end);
                }
                continue;
            }
            let random = randomness(self.plan.seed, index, direction, flow);
            let key = (direction, flow);
            let counts = &*self.counts;
            let Some(count) = state.affects(rule, index, counts, began, now, key, random) else {
                continue;
            };
            let free_at = &mut state.free_at[direction as usize];
            match rule.effect {
                Effect::Delay { ns, jitter } => {
                    let range = jitter.min(ns);
                    let jitter = below(random(2, count), range + jitter + 1);
                    *free_at = (fate.due.saturating_add(ns) - range + jitter).max(*free_at);
                    fate.due = *free_at;
                }
                // The bytes wait in the sender: TCP has no queue that overflows.
                Effect::Rate { bits, .. } => {
                    let takes = fpdu.len() as u64 * 8_000_000_000 / bits;
                    *free_at = fate.due.max(*free_at).saturating_add(takes);
                    fate.due = *free_at;
                }
                // Only a partition: other losses are refused.
                Effect::Drop => fate.due = fate.due.max(end_of(rule, state.began, began)),
                Effect::Reset => fate.is_reset = true,
                _ => continue,
            }
            state.hits += 1;
            self.counts.hit(index);
        }
        fate
    }
}

/// Returns the time at which a rule ends that applies now.
fn end_of(rule: &Rule, first: Option<u64>, began: u64) -> u64 {
    let begin = match rule.window.at {
        Some(at) => began + at,
        None => first.unwrap_or(began),
    };
    rule.window
        .lasts
        .map_or(u64::MAX, |lasts| begin.saturating_add(lasts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::LocalCounts;

    const MS: u64 = 1_000_000;
    const SEND: [u8; 100] = fpdu(3);
    const WRITE: [u8; 100] = fpdu(0);

    const fn fpdu(opcode: u8) -> [u8; 100] {
        let mut fpdu = [0; 100];
        fpdu[1] = 94;
        fpdu[3] = 0x40 | opcode;
        fpdu
    }

    fn weather(text: &str) -> Weather {
        let plan = Plan::parse(text).expect("valid");
        assert_eq!(plan.check_for_streams(), Ok(()));
        Weather::for_streams(Arc::new(plan), Arc::<LocalCounts>::default())
    }

    fn judge(weather: &mut Weather, now: u64, fpdu: &[u8]) -> StreamFate {
        weather.judge_fpdu(now, [127, 0, 0, 1].into(), 7, fpdu)
    }

    #[test]
    fn fpdus_are_late_and_keep_their_order() {
        let mut weather = weather("delay 5ms jitter 2ms seed 3");
        let dues: Vec<u64> = (0..100)
            .map(|at| judge(&mut weather, at * MS, &SEND).due)
            .collect();
        assert!(dues.is_sorted());
        for (at, due) in dues.iter().enumerate() {
            let late = due - at as u64 * MS;
            assert!((3 * MS..=7 * MS).contains(&late), "{late}");
        }
    }

    #[test]
    fn rate_spaces_fpdus() {
        let mut weather = weather("rate 1mbit");
        // 100 bytes take 0.8 ms at 1 Mb/s.
        for number in 1..10 {
            assert_eq!(judge(&mut weather, 0, &WRITE).due, number * 8 * MS / 10);
        }
    }

    #[test]
    fn partition_holds_fpdus_until_it_ends() {
        let mut for_a_while = weather("partition at 10ms for 20ms");
        for (now, due) in [(0, 0), (15, 30), (29, 30), (31, 31)] {
            assert_eq!(judge(&mut for_a_while, now * MS, &SEND).due, due * MS);
        }
        let mut for_good = weather("partition after 1 packets");
        assert_eq!(judge(&mut for_good, 5, &SEND).due, 5);
        assert_eq!(judge(&mut for_good, 6, &SEND).due, u64::MAX);
    }

    #[test]
    fn chosen_fpdu_resets_the_connection() {
        let mut weather = weather("reset the 2nd SEND");
        let fpdus = [&SEND, &WRITE, &SEND, &SEND];
        let resets = fpdus.map(|fpdu| judge(&mut weather, 0, fpdu).is_reset);
        assert_eq!(resets, [false, false, true, false]);
    }

    #[test]
    fn queue_pair_fails_after_a_number_of_fpdus() {
        let mut weather = weather("qp error after 3 packets");
        for _ in 0..2 {
            judge(&mut weather, 0, &SEND);
            assert_eq!(weather.poll_event(), None);
        }
        judge(&mut weather, 0, &SEND);
        assert_eq!(weather.poll_event(), Some(Provoked::QpError(7)));
    }

    #[test]
    fn port_that_is_down_holds_fpdus() {
        let mut weather = weather("port down after 1 packets for 5ms");
        assert_eq!(judge(&mut weather, MS, &SEND).due, 6 * MS);
        assert_eq!(weather.poll_event(), Some(Provoked::Port { up: false }));
        weather.handle_timeout(6 * MS);
        assert_eq!(weather.poll_event(), Some(Provoked::Port { up: true }));
    }
}
