//! Events that have no token in the pipe of their channel yet.
//!
//! One packet often makes two events: an answer carries the ACK of its request, and both complete. The thread in
//! `ibv_get_cq_event` takes one of them, and mostly calls again for the other at once. To write a token
//! and read it back takes 0.5 us, of a message of 5. So the second event gets its token late: the progress
//! thread supplies it if the program has not taken the event within half a standby. A program that waits for the
//! descriptor sees the event then. It waits so long once in eight events at first, then once in 16, 32 and so on, and at
//! last once in [`REST`](crate::channel::REST) events.
//!
//! No event stays without a token. The thread that leaves one behind stores it here, and then looks until when
//! the progress thread sleeps; if for longer than a standby, it wakes that thread. The progress thread stores until
//! when it sleeps, and then looks here; if there is an event, it sleeps for a standby at most. Both have
//! a sequentially consistent fence between the two, so one of them sees the other.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use ferroce_roce::Time;
use ferroce_shard::STANDBY_NS;

use crate::channel::Channel;
use crate::slowness::scaled;

/// The channel whose events need tokens. A shard has room for one.
#[derive(Debug, Default)]
pub(crate) struct LateEvents {
    is_used: AtomicBool,
    slot: Mutex<Option<(Arc<Channel>, Time)>>,
}

impl LateEvents {
    /// Stores a channel, some of whose events have no token. Returns false if there is no room: the
    /// caller supplies the tokens.
    pub(crate) fn store(&self, channel: &Arc<Channel>, now: Time) -> bool {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *slot {
            Some((stored, since)) if Arc::ptr_eq(stored, channel) => *since = now,
            Some(_) => return false,
            None => *slot = Some((Arc::clone(channel), now)),
        }
        self.is_used.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        true
    }

    /// Returns true if a channel is stored. A thread that sleeps next has stored until when.
    pub(crate) fn is_used(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_used.load(Ordering::Relaxed)
    }

    /// Supplies tokens, if the program has not come for the events in time.
    pub(crate) fn supply_if_due(&self, now: Time) {
        if self.is_used.load(Ordering::Relaxed) {
            self.supply(|since| now.nanos_since(since) >= scaled(STANDBY_NS) / 2);
        }
    }

    /// Supplies tokens now.
    pub(crate) fn supply_all(&self) {
        fence(Ordering::SeqCst);
        self.supply(|_| true);
    }

    fn supply(&self, is_due: impl FnOnce(Time) -> bool) {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((channel, _)) = slot.take_if(|(_, since)| is_due(*since)) {
            self.is_used.store(false, Ordering::Relaxed);
            // Threads that store a channel hold its lock.
            drop(slot);
            channel.supply_tokens();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{REST, is_readable};

    /// Leaves an event without a token.
    fn leave_late_event(channel: &Channel) {
        let work = || {
            channel.put(7);
            channel.put(8);
        };
        let taken = channel.take_after(work, &mut Some(|record| record), || true);
        assert_eq!(taken, Some(7));
        assert!(!is_readable(channel));
    }

    fn with_late_event() -> Arc<Channel> {
        let channel = Arc::new(Channel::new().unwrap());
        leave_late_event(&channel);
        channel
    }

    #[test]
    fn token_is_supplied_when_the_program_does_not_come() {
        let (late, channel) = (LateEvents::default(), with_late_event());
        let now = Time::from_nanos(1);
        assert!(!late.is_used());
        assert!(late.store(&channel, now));
        late.supply_if_due(now);
        assert!(!is_readable(&channel) && late.is_used());
        late.supply_if_due(now.after_nanos(scaled(STANDBY_NS) / 2));
        assert!(is_readable(&channel) && !late.is_used());
        assert_eq!(channel.take().unwrap(), 8);
        assert!(!is_readable(&channel));
    }

    #[test]
    fn there_is_room_for_one_channel() {
        let (late, channel) = (LateEvents::default(), with_late_event());
        let now = Time::from_nanos(1);
        assert!(late.store(&channel, now) && late.store(&channel, now));
        assert!(!late.store(&with_late_event(), now));
        late.supply_all();
        assert!(is_readable(&channel));
        assert!(late.store(&with_late_event(), now));
    }

    /// Puts two records, takes both, and returns true if the second was without a token meanwhile.
    fn second_is_late(channel: &Channel) -> bool {
        let put_two = || (1..3).for_each(|record| channel.put(record));
        channel.take_after(put_two, &mut Some(|record| record), || true);
        let late = !is_readable(channel);
        assert_eq!(channel.take().unwrap(), 2);
        late
    }

    #[test]
    fn tokens_that_were_supplied_end_late_events_for_longer_each_time() {
        let channel = Channel::new().unwrap();
        let mut rests = Vec::new();
        while rests.last() != Some(&REST) {
            leave_late_event(&channel);
            channel.supply_tokens();
            assert_eq!(channel.take().unwrap(), 8);
            let rest = (0..).take_while(|_| !second_is_late(&channel)).count();
            rests.push(u32::try_from(rest).unwrap());
        }
        assert_eq!(rests, [8, 16, 32, 64, 128, 256, 512, REST]);
        for _ in 0..REST {
            assert!(second_is_late(&channel));
        }
        leave_late_event(&channel);
        channel.supply_tokens();
        assert_eq!(channel.take().unwrap(), 8);
        let rest = (0..).take_while(|_| !second_is_late(&channel)).count();
        assert_eq!(rest, 8, "earlier failures are forgotten");
    }
}
