//! Decides whether the progress thread watches the sockets while the program polls.
//!
//! A program that polls its completion queue receives packets itself. A progress thread
//! that watched the sockets too would wake up for each packet in vain, and compete for the
//! lock. So it stands by. But a program may poll the queue only now and then, and wait for
//! a WRITE by reading its own memory: it makes no call, and its packets wait in the socket
//! until the standby ends. The rule learns from the packets which kind of program this is.

/// Standbys in a row that ended with waiting packets, after which the program is taken for
/// one that polls memory.
const MISSED: u8 = 2;
/// Wakeups in a row for packets that the program had received itself, after which the
/// program is taken for one that polls completion queues. A ping-pong of WRITEs has one
/// such wakeup, for the ACK, between two packets that the thread receives.
const IN_VAIN: u8 = 16;

/// The reason why the progress thread does a turn.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Woken {
    /// The time is over in which the program was expected to poll again.
    ByStandby,
    /// A datagram arrived while the thread watched the sockets.
    ByPacket,
    /// Anything else: a timer, a call of the program, or no sleep at all.
    Otherwise,
}

/// The kind of program that a progress thread serves, learned from its packets.
#[derive(Default, Debug)]
pub struct ProgressRule {
    polls_memory: bool,
    /// Events in a row that speak against the present kind.
    against: u8,
}

impl ProgressRule {
    /// Returns true if the program waits for WRITEs by reading memory: polls of completion
    /// queues do not receive its packets in time.
    pub fn polls_memory(&self) -> bool {
        self.polls_memory
    }

    /// Notes a turn of the progress thread that received so many datagrams.
    pub fn note(&mut self, woken: Woken, received: usize) {
        let (is_against, limit) = match (self.polls_memory, woken) {
            (false, Woken::ByStandby) => (received > 0, MISSED),
            (true, Woken::ByPacket) => (received == 0, IN_VAIN),
            _ => return,
        };
        self.against = if is_against { self.against + 1 } else { 0 };
        if self.against >= limit {
            self.polls_memory = !self.polls_memory;
            self.against = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polling_memory() -> ProgressRule {
        let mut rule = ProgressRule::default();
        for _ in 0..MISSED {
            assert!(!rule.polls_memory());
            rule.note(Woken::ByStandby, 1);
        }
        assert!(rule.polls_memory());
        rule
    }

    #[test]
    fn packets_that_wait_for_the_end_of_standbys_show_a_memory_poller() {
        let mut rule = polling_memory();
        // The ACK of a ping-pong goes to the program, the WRITE to the thread.
        for _ in 0..100 {
            rule.note(Woken::ByPacket, 0);
            rule.note(Woken::ByPacket, 1);
        }
        assert!(rule.polls_memory());
    }

    #[test]
    fn wakeups_in_vain_show_a_poller_of_completion_queues() {
        let mut rule = polling_memory();
        for _ in 0..IN_VAIN {
            assert!(rule.polls_memory());
            rule.note(Woken::ByPacket, 0);
        }
        assert!(!rule.polls_memory());
    }

    #[test]
    fn quiet_standbys_timers_and_idle_sockets_prove_nothing() {
        let mut rule = ProgressRule::default();
        for _ in 0..100 {
            rule.note(Woken::ByStandby, 1);
            rule.note(Woken::ByStandby, 0);
            rule.note(Woken::ByPacket, 1);
            rule.note(Woken::Otherwise, 1);
        }
        assert!(!rule.polls_memory());
    }
}
