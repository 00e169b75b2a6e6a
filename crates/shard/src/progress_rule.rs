//! Decides whether the progress thread watches the sockets while the program polls.
//!
//! A program that polls its completion queue receives packets itself. A progress thread
//! that watched the sockets too would wake up for each packet in vain, and compete for the
//! lock. So it stands by. But a program may poll the queue only now and then, and wait for
//! a WRITE by reading its own memory: it makes no call, and its packets wait in the socket
//! until the standby ends. The rule learns from the packets which kind of program this is.
//!
//! A program can change its kind, and a long call of a program that polls looks like a pause.
//! So the rule puts its belief that the program polls memory to the test now and then: it lets
//! the thread stand by, and returns to its belief if packets had to wait.

use ferroce_roce::Time;

/// Time in which two standbys must end with waiting packets, so that the program is taken for
/// one that polls memory. A packet that waits for a standby is late by some 80 us. If that
/// happens to fewer than one message in a hundred, a wakeup for each message costs more.
const MISSES_NS: u64 = 1_000_000;
/// Time after such a standby in which the thread must be on time at the end of a standby.
const URGENT_NS: u64 = 10_000_000;
/// Wakeups in a row for packets that the program had received itself, after which the
/// program is taken for one that polls completion queues. A ping-pong of WRITEs has one
/// such wakeup, for the ACK, between two packets that the thread receives.
const IN_VAIN: u8 = 16;
/// Time until the first trial of a standby. It doubles with each trial in which packets had to
/// wait, because one of them has to wait for most of a standby.
const FIRST_TRIAL_NS: u64 = 1_000_000;
/// Longest time between two trials: one late packet in 100 ms does not change a program's
/// latency at 99 %.
const LATEST_TRIAL_NS: u64 = 100_000_000;
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

/// The kind of program that a progress thread serves.
#[derive(Copy, Clone, Debug)]
enum Kind {
    PollsQueues {
        /// Begin of this belief.
        since: Time,
        /// End of the last standby that ended with waiting packets, or begin of a trial.
        missed: Option<Time>,
    },
    PollsMemory {
        next_trial: Time,
        /// Wakeups in a row for packets that the program had received itself.
        in_vain: u8,
    },
}

/// Learns from packets which kind of program a progress thread serves.
#[derive(Debug)]
pub struct ProgressRule {
    kind: Kind,
    /// Time between two trials.
    interval_ns: u64,
}

impl Default for ProgressRule {
    fn default() -> ProgressRule {
        ProgressRule {
            kind: Kind::PollsQueues {
                since: Time::ZERO,
                missed: None,
            },
            interval_ns: FIRST_TRIAL_NS,
        }
    }
}

impl ProgressRule {
    /// Returns true if the program waits for WRITEs by reading memory: polls of completion
    /// queues do not receive its packets in time.
    pub fn polls_memory(&self) -> bool {
        matches!(self.kind, Kind::PollsMemory { .. })
    }

    /// Begins a trial if one is due: the program is taken for one that polls completion
    /// queues, until the first standby that ends with waiting packets.
    pub fn begin_trial_if_due(&mut self, now: Time) {
        if matches!(self.kind, Kind::PollsMemory { next_trial, .. } if now >= next_trial) {
            self.kind = Kind::PollsQueues {
                since: now,
                missed: Some(now),
            };
        }
    }

    /// Returns true if packets may be waiting for the end of a standby: in a trial, and for a
    /// while after packets had to wait.
    pub fn standby_is_urgent(&self, now: Time) -> bool {
        matches!(self.kind, Kind::PollsQueues { missed: Some(missed), .. }
            if now.nanos_since(missed) < URGENT_NS)
    }

    /// Notes a turn of the progress thread that received so many datagrams.
    pub fn note(&mut self, now: Time, woken: Woken, received: usize) {
        match (&mut self.kind, woken) {
            (Kind::PollsQueues { missed, .. }, Woken::ByStandby) if received == 0 => *missed = None,
            (Kind::PollsQueues { since, missed }, Woken::ByStandby) => {
                if !missed.is_some_and(|missed| now.nanos_since(missed) < MISSES_NS) {
                    *missed = Some(now);
                    return;
                }
                // The belief was not worth having if it lasted for a few standbys only.
                self.interval_ns = match now.nanos_since(*since) < URGENT_NS {
                    true => (self.interval_ns * 2).min(LATEST_TRIAL_NS),
                    false => FIRST_TRIAL_NS,
                };
                self.kind = Kind::PollsMemory {
                    next_trial: now.after_nanos(self.interval_ns),
                    in_vain: 0,
                };
            }
            (Kind::PollsMemory { in_vain, .. }, Woken::ByPacket) => {
                *in_vain = if received == 0 { *in_vain + 1 } else { 0 };
                if *in_vain == IN_VAIN {
                    self.kind = Kind::PollsQueues {
                        since: now,
                        missed: None,
                    };
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::STANDBY_NS;

    const START: Time = Time::from_nanos(1_000_000_000);

    fn polling_memory() -> ProgressRule {
        let mut rule = ProgressRule::default();
        rule.note(START, Woken::ByStandby, 1);
        assert!(!rule.polls_memory() && rule.standby_is_urgent(START));
        rule.note(START, Woken::ByStandby, 1);
        assert!(rule.polls_memory());
        rule
    }

    #[test]
    fn packets_that_wait_for_the_end_of_standbys_show_a_memory_poller() {
        let mut rule = polling_memory();
        // The ACK of a ping-pong goes to the program, the WRITE to the thread.
        for _ in 0..100 {
            rule.note(START, Woken::ByPacket, 0);
            rule.note(START, Woken::ByPacket, 1);
        }
        assert!(rule.polls_memory());
    }

    #[test]
    fn seldom_waiting_packets_do_not_show_a_memory_poller() {
        let mut rule = ProgressRule::default();
        for miss in 0..100 {
            let now = START.after_nanos(miss * MISSES_NS);
            rule.note(now, Woken::ByStandby, 1);
            assert!(!rule.polls_memory());
            assert!(rule.standby_is_urgent(now), "the next packet may wait");
        }
        assert!(!rule.standby_is_urgent(START.after_nanos(100 * MISSES_NS + URGENT_NS)));
    }

    #[test]
    fn wakeups_in_vain_show_a_poller_of_completion_queues() {
        let mut rule = polling_memory();
        for _ in 0..IN_VAIN {
            assert!(rule.polls_memory());
            rule.note(START, Woken::ByPacket, 0);
        }
        assert!(!rule.polls_memory());
    }

    #[test]
    fn quiet_standbys_timers_and_idle_sockets_prove_nothing() {
        let mut rule = ProgressRule::default();
        for _ in 0..100 {
            rule.note(START, Woken::ByStandby, 1);
            rule.note(START, Woken::ByStandby, 0);
            rule.note(START, Woken::ByPacket, 1);
            rule.note(START, Woken::Otherwise, 1);
        }
        assert!(!rule.polls_memory());
    }

    #[test]
    fn belief_in_a_memory_poller_is_put_to_the_test() {
        let mut rule = polling_memory();
        rule.begin_trial_if_due(START);
        assert!(rule.polls_memory(), "a trial began too soon");
        let trial = START.after_nanos(FIRST_TRIAL_NS);
        rule.begin_trial_if_due(trial);
        assert!(!rule.polls_memory() && rule.standby_is_urgent(trial));
        // No packet has to wait: the trial passes.
        let end = trial.after_nanos(URGENT_NS);
        rule.begin_trial_if_due(end);
        assert!(!rule.polls_memory() && !rule.standby_is_urgent(end));
    }

    #[test]
    fn one_packet_that_waits_ends_a_trial_and_delays_the_next() {
        let mut rule = polling_memory();
        let (mut now, mut trials) = (START, 0);
        while now.nanos_since(START) < 1_000_000_000 {
            rule.begin_trial_if_due(now);
            if !rule.polls_memory() {
                trials += 1;
                rule.note(now.after_nanos(STANDBY_NS), Woken::ByStandby, 1);
            }
            assert!(rule.polls_memory());
            now = now.after_nanos(STANDBY_NS);
        }
        // After 1, 3, 7, 15, 31, 63 ms, then every 100 ms.
        assert_eq!(trials, 15);
    }
}
