//! Holding unreliable senders back, so that a receiver on the same machine keeps up.
//!
//! What a UC or UD queue pair sends is acknowledged by nobody. A program that sends
//! faster than its peer receives would fill the peer's socket, and what does not fit
//! is lost. Between machines that is how it is. On one machine both ends write on
//! ferroced's [`Board`]: senders how much they put into a slot, its owner how much
//! it took out. A sender waits while half of the peer's buffer is taken, or a megabyte.
//!
//! Numbers may be off: packets that the kernel dropped are never taken out. So the
//! owner sets things right whenever it finds its sockets empty; and nobody waits
//! for long for an owner that takes nothing out, which may be stopped.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_control::{BOARD_ENTRY, BOARD_SIZE, Board};
use ferroce_net::slot_of_qpn;
use ferroce_transport::{Run, Time};
use ferroce_wire::Transport;

use crate::mapping::{Mapping, SharedNumbers};

/// Most that waits at a receiver: more would only push it out of the caches.
pub(crate) const MOST: u64 = 1 << 20;
/// How long to wait for an owner that takes nothing out.
const PATIENCE_NS: u64 = 200_000_000;
/// What a packet takes of a socket's buffer beside its bytes.
const PACKET_COST: u64 = 768;

/// A slot's entry. All zero while nobody has the slot.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Entry {
    /// How much senders may put in before they wait; 0 if they need not.
    limit: AtomicU64,
    /// How much the owner took out.
    taken: AtomicU64,
    _line: [u64; 6],
    /// How much senders put in.
    put: AtomicU64,
}

const _: () = assert!(size_of::<Entry>() == BOARD_ENTRY);

// SAFETY: an entry is atomics and a line that nobody reads, and any numbers are valid.
unsafe impl SharedNumbers for [Entry; 256] {}

/// The board, mapped until the last of its users is dropped.
pub(crate) type Entries = Arc<Mapping<[Entry; 256]>>;

/// Maps the board.
pub(crate) fn map(board: &Board) -> std::io::Result<Entries> {
    Ok(Arc::new(Mapping::new(board.as_fd(), BOARD_SIZE)?))
}

/// Whether packets with this opcode are acknowledged by nobody.
pub(crate) fn is_unreliable(opcode: u8) -> bool {
    const UC: u8 = Transport::Uc as u8;
    const UD: u8 = Transport::Ud as u8;
    matches!(opcode >> 5, UC | UD)
}

/// What so many bytes in so many packets take of a buffer.
pub(crate) fn cost(bytes: usize, packets: usize) -> u64 {
    bytes as u64 + PACKET_COST * packets as u64
}

/// The owner's side of an entry.
#[derive(Debug)]
pub(crate) struct Intake {
    entries: Entries,
    slot: u8,
    /// What senders had put in before we looked at the sockets.
    put_before: u64,
    taken: u64,
}

impl Intake {
    /// Opens an entry for a slot whose sockets have buffers of so many bytes.
    pub(crate) fn new(entries: Entries, slot: u8, buffer: usize) -> Intake {
        let entry = &entries[usize::from(slot)];
        let limit = MOST.min(buffer as u64 / 2);
        entry.limit.store(limit, Ordering::Relaxed);
        let taken = entry.taken.load(Ordering::Relaxed);
        Intake {
            entries,
            slot,
            put_before: 0,
            taken,
        }
    }

    fn entry(&self) -> &Entry {
        &self.entries[usize::from(self.slot)]
    }

    /// The sockets are looked at now.
    pub(crate) fn begin(&mut self) {
        self.put_before = self.entry().put.load(Ordering::Relaxed);
    }

    /// A packet was taken out.
    pub(crate) fn take(&mut self, packet: &[u8]) {
        if packet.first().is_some_and(|&opcode| is_unreliable(opcode)) {
            self.taken = self.taken.wrapping_add(cost(packet.len(), 1));
        }
    }

    /// The look at the sockets is over; all of them were `empty` from the beginning.
    pub(crate) fn end(&mut self, empty: bool) {
        if empty {
            self.taken = self.put_before;
        }
        if self.entry().taken.load(Ordering::Relaxed) != self.taken {
            self.entry().taken.store(self.taken, Ordering::Relaxed);
        }
    }
}

/// A sender's side of all entries.
#[derive(Debug)]
pub(crate) struct Pacer {
    entries: Entries,
    /// Since when the sender waits, for which slot, and what that had taken out.
    waits: Option<(Time, u8, u64)>,
    /// The slot last given up on, and what it had taken out.
    given_up: Option<(u8, u64)>,
}

impl Pacer {
    pub(crate) fn new(entries: Entries) -> Pacer {
        Pacer {
            entries,
            waits: None,
            given_up: None,
        }
    }

    /// What a run puts into which slot of this machine; none if nobody need count it.
    pub(crate) fn burden(run: &Run, opcode: u8, bytes: usize) -> Option<Burden> {
        let flow = &run.path.flow;
        // Programs on one link have the same addresses.
        let here = flow.destination == flow.source;
        (here && is_unreliable(opcode)).then(|| Burden {
            slot: slot_of_qpn(run.dest_qpn()),
            cost: cost(bytes, run.packets.len()),
        })
    }

    /// Whether there is room; if so, it is taken.
    pub(crate) fn admit(&mut self, burden: Burden, now: impl FnOnce() -> Time) -> bool {
        let Burden { slot, cost } = burden;
        let entry = &self.entries[usize::from(slot)];
        let limit = entry.limit.load(Ordering::Relaxed);
        if limit == 0 {
            return true;
        }
        let taken = entry.taken.load(Ordering::Relaxed);
        let put = entry.put.load(Ordering::Relaxed);
        // More may have been taken out than was put in: other machines do not count.
        let inside = put.wrapping_sub(taken) as i64;
        let room = inside <= 0 || inside as u64 + cost <= limit;
        if !room && self.given_up != Some((slot, taken)) && !self.is_tired(slot, taken, now()) {
            return false;
        }
        self.waits = None;
        self.entries[usize::from(slot)]
            .put
            .fetch_add(cost, Ordering::Relaxed);
        true
    }

    /// Whether the slot has taken nothing out for long.
    fn is_tired(&mut self, slot: u8, taken: u64, now: Time) -> bool {
        match self.waits {
            Some((since, for_slot, before)) if (for_slot, before) == (slot, taken) => {
                let tired = now.nanos_since(since) > PATIENCE_NS;
                if tired {
                    self.given_up = Some((slot, taken));
                }
                tired
            }
            _ => {
                self.waits = Some((now, slot, taken));
                false
            }
        }
    }
}

/// What a run puts into a slot of this machine.
#[derive(Debug, Copy, Clone)]
pub(crate) struct Burden {
    slot: u8,
    cost: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u8 = 7;

    fn board() -> (Intake, Pacer) {
        let entries = map(&Board::new().unwrap()).unwrap();
        let intake = Intake::new(Arc::clone(&entries), SLOT, 20_000);
        (intake, Pacer::new(entries))
    }

    fn admit(pacer: &mut Pacer, cost: u64, at_ms: u64) -> bool {
        let now = Time::from_nanos(at_ms * 1_000_000);
        pacer.admit(Burden { slot: SLOT, cost }, || now)
    }

    #[test]
    fn a_sender_waits_while_half_of_the_buffer_is_taken() {
        let (mut intake, mut pacer) = board();
        assert!(admit(&mut pacer, 6000, 1));
        assert!(!admit(&mut pacer, 6000, 1));
        intake.begin();
        intake.take(&[0x64; 3000]);
        intake.end(false);
        assert!(
            admit(&mut pacer, 6000, 1),
            "3000 and what a packet costs are out"
        );
    }

    #[test]
    fn packets_of_reliable_queue_pairs_are_not_counted() {
        let (mut intake, mut pacer) = board();
        assert!(admit(&mut pacer, 10_000, 1));
        intake.begin();
        intake.take(&[0x04; 9000]);
        intake.end(false);
        assert!(!admit(&mut pacer, 1, 1));
    }

    #[test]
    fn what_was_lost_is_forgotten_when_the_sockets_are_empty() {
        let (mut intake, mut pacer) = board();
        assert!(admit(&mut pacer, 10_000, 1));
        intake.begin();
        intake.end(true);
        assert!(admit(&mut pacer, 10_000, 1));
    }

    #[test]
    fn nobody_waits_for_long_for_an_owner_that_is_stopped() {
        let (mut intake, mut pacer) = board();
        assert!(admit(&mut pacer, 10_000, 1));
        assert!(!admit(&mut pacer, 10_000, 2));
        assert!(!admit(&mut pacer, 10_000, 201));
        assert!(admit(&mut pacer, 10_000, 203), "patience is over");
        assert!(admit(&mut pacer, 10_000, 203), "and does not begin again");
        intake.begin();
        intake.take(&[0x64; 100]);
        intake.end(false);
        assert!(!admit(&mut pacer, 10_000, 204), "the owner is back");
    }

    #[test]
    fn one_message_larger_than_the_limit_is_sent_into_an_empty_buffer() {
        let (_, mut pacer) = board();
        assert!(admit(&mut pacer, 60_000, 1));
    }

    #[test]
    fn a_slot_that_nobody_has_opened_makes_nobody_wait() {
        let (_, mut pacer) = board();
        let burden = Burden {
            slot: 9,
            cost: 1 << 40,
        };
        assert!(pacer.admit(burden, || Time::ZERO));
        assert!(pacer.admit(burden, || Time::ZERO));
    }
}
