//! Polls that find nothing: most polls of a program that waits for a message.
//!
//! Such a poll looks for a packet and does no turn. **Why**: a turn runs about 500 instructions more, and a
//! packet that arrives during a poll waits for the next one.

use ferroce_net::{Scope, Wire};
use ferroce_roce::Time;

use crate::core::{Core, IDLE_FAMILY_TURNS};
use crate::credits::CreditPage;

/// Time for which a poller that receives through memory leaves the sockets alone, if packets
/// have arrived there lately. A look at them takes 0.3 us, several times that of a message through
/// memory.
const SOCKETS_WAIT_NS: u64 = 4_000;
/// The same time if the sockets have been silent for [`SILENT_SOCKETS_NS`]: the looks at them would
/// take a tenth of the time of a ping-pong through memory.
const SILENT_SOCKETS_WAIT_NS: u64 = 32_000;
const SILENT_SOCKETS_NS: u64 = 1_000_000;

impl<W: Wire, P: AsRef<CreditPage> + Clone> Core<W, P> {
    /// Returns true if a turn of a poller has nothing to do. Looks at a socket if that decides.
    ///
    /// If it returns false, the caller does a turn: the wire may have found a datagram for it.
    #[inline]
    pub fn finds_nothing(&mut self, now: Time) -> bool {
        if self.is_quiet(now) {
            return true;
        }
        // A whole turn looks at the other family.
        let turns = self.turns.wrapping_add(1);
        if turns.is_multiple_of(IDLE_FAMILY_TURNS) || !self.has_only_sockets(now) {
            return false;
        }
        // The turn receives the error.
        let finds = self.wire.look(Scope::OneMessage).unwrap_or(true);
        if !finds {
            self.turns = turns;
            self.sockets_read_at = now;
        }
        !finds
    }

    /// Returns true if a turn of a poller has nothing to do unless a datagram waits at a socket.
    #[inline]
    fn has_only_sockets(&self, now: Time) -> bool {
        !self.wire.is_memory_busy()
            && !self.engine.has_packets()
            && self.is_idle()
            && !self.has_prepared()
            && self.faults.is_none()
            && self.engine.next_timeout().is_none_or(|due| due > now)
    }

    /// Returns true if a turn of a poller would find nothing to do. That takes a fraction of the time of
    /// the turn.
    #[inline]
    pub fn is_quiet(&self, now: Time) -> bool {
        self.is_memory_quiet()
            && self.sockets_can_wait(now)
            && self.engine.next_timeout().is_none_or(|due| due > now)
    }

    /// Returns true if packets arrive through memory, and neither a packet nor an ACK waits there or
    /// here. Sockets and timers are not looked at: that takes the time, and reading the clock
    /// takes longer than this.
    #[inline]
    pub fn is_memory_quiet(&self) -> bool {
        self.wire.is_memory_busy()
            && !self.wire.has_packet_in_memory()
            && !self.engine.has_packets()
            && self.is_idle()
            && self.faults.is_none()
    }

    /// Returns true if the sockets were read just now, and packets arrive through memory. A look
    /// into memory costs no system call, so a poller can look at the sockets less often.
    pub(crate) fn sockets_can_wait(&self, now: Time) -> bool {
        let is_silent = now.nanos_since(self.sockets_found_at) > SILENT_SOCKETS_NS;
        let wait = match is_silent {
            true => SILENT_SOCKETS_WAIT_NS,
            false => SOCKETS_WAIT_NS,
        };
        self.wire.is_memory_busy() && now.nanos_since(self.sockets_read_at) < wait
    }
}
