//! Packets that wait: until a time, or until others have overtaken them.

use std::collections::BTreeMap;

use crate::fate::Fate;

/// Time after which a packet that should be overtaken goes on anyway.
const OVERTAKE_NS: u64 = 20_000_000;

/// A queue of packets in the order of their times.
#[derive(Debug)]
pub struct Held<T> {
    packets: BTreeMap<(u64, u64), Entry<T>>,
    next: u64,
}

#[derive(Debug)]
struct Entry<T> {
    flow: u64,
    /// Packets of the flow that still have to overtake it.
    behind: u32,
    packet: T,
}

impl<T> Default for Held<T> {
    fn default() -> Held<T> {
        Held {
            packets: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<T> Held<T> {
    /// Returns true if no packet waits.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the number of packets that wait.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns the time at which the next packet goes on.
    pub fn next_due(&self) -> Option<u64> {
        let ((due, _), _) = self.packets.first_key_value()?;
        Some(*due)
    }

    /// Adds a packet of a flow, which waits as its fate says.
    pub fn add(&mut self, now: u64, fate: &Fate, flow: u64, packet: T) {
        let due = match fate.behind {
            0 => fate.due.unwrap_or(now),
            _ => fate.due.unwrap_or(now) + OVERTAKE_NS,
        };
        let entry = Entry {
            flow,
            behind: fate.behind,
            packet,
        };
        self.packets.insert((due, self.next), entry);
        self.next += 1;
    }

    /// Notes that a packet of a flow goes on now. Packets that it was the last to overtake are
    /// due then.
    pub fn passed(&mut self, now: u64, flow: u64) {
        let mut due = Vec::new();
        for (key, entry) in &mut self.packets {
            if entry.flow == flow && entry.behind > 0 {
                entry.behind -= 1;
                if entry.behind == 0 {
                    due.push(*key);
                }
            }
        }
        for key in due {
            if let Some(entry) = self.packets.remove(&key) {
                self.packets.insert((now, key.1), entry);
            }
        }
    }

    /// Returns the next packet that is due.
    pub fn take_due(&mut self, now: u64) -> Option<T> {
        let entry = self.packets.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove().packet)
    }

    /// Returns the next packet, due or not.
    pub fn take_any(&mut self) -> Option<T> {
        self.packets.pop_first().map(|(_, entry)| entry.packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(held: &mut Held<char>, now: u64) -> String {
        core::iter::from_fn(|| held.take_due(now)).collect()
    }

    #[test]
    fn packets_go_on_in_the_order_of_their_times() {
        let mut held = Held::default();
        let late = |due| Fate {
            due: Some(due),
            ..Fate::PASS
        };
        held.add(0, &late(30), 1, 'c');
        held.add(0, &late(10), 1, 'a');
        held.add(0, &late(10), 1, 'b');
        assert_eq!(held.next_due(), Some(10));
        assert_eq!(order(&mut held, 9), "");
        assert_eq!(order(&mut held, 10), "ab");
        assert_eq!(held.take_any(), Some('c'));
    }

    #[test]
    fn reordered_packet_waits_for_packets_of_its_own_flow() {
        let mut held = Held::default();
        let fate = Fate {
            behind: 2,
            ..Fate::PASS
        };
        held.add(5, &fate, 1, 'x');
        held.passed(6, 1);
        held.passed(6, 2);
        assert_eq!(order(&mut held, 6), "", "overtaken by one");
        held.passed(7, 1);
        assert_eq!(order(&mut held, 7), "x");
    }

    #[test]
    fn reordered_packet_at_the_end_of_a_flow_goes_on_after_20_ms() {
        let mut held = Held::default();
        let fate = Fate {
            behind: 1,
            ..Fate::PASS
        };
        held.add(5, &fate, 1, 'x');
        assert_eq!(order(&mut held, 19_000_000), "");
        assert_eq!(order(&mut held, 20_000_005), "x");
    }
}
