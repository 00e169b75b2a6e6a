//! Wakes a peer that has overlooked the first message of its initiator.
//!
//! The kernel's siw sends its Reply before it connects the socket with the queue pair. An FPDU
//! that arrives in between stays in the socket, unread, until more bytes arrive: a program
//! that sends one message and waits for the answer waits for ever. So an initiator that has
//! received nothing sends Writes of no bytes after its first message. They name no memory, so
//! any peer ignores them, as it ignores the RTR frame of RFC 6581.

use core::time::Duration;

use ferroce_objects::QpState;

use super::{Phase, Qp};
use crate::engine::Context;
use crate::mpa::Role;

/// Times between the first message and the Writes of no bytes. The gap in siw takes some
/// microseconds, and milliseconds in an emulated guest.
pub const NUDGES: [Duration; 4] = [
    Duration::from_millis(2),
    Duration::from_millis(20),
    Duration::from_millis(200),
    Duration::from_secs(2),
];

/// STag of a Write of no bytes, as in siw's RTR frame.
const STAG: u32 = 1;

/// The state of the nudges of a stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Nudge {
    /// The peer has sent something, or is the initiator, or all nudges were sent.
    Done,
    /// Nothing has been sent yet.
    Unarmed,
    /// The stream's deadline is the time of this nudge.
    Next(u8),
}

impl Nudge {
    pub(super) fn of(role: Role) -> Nudge {
        match role {
            Role::Initiator => Nudge::Unarmed,
            Role::Responder => Nudge::Done,
        }
    }
}

impl Qp {
    /// Starts the timer after the first message.
    pub(super) fn arm_nudge(&mut self, cx: &mut Context) {
        if let Some(stream) = &mut self.stream
            && stream.nudge == Nudge::Unarmed
            && stream.phase == Phase::Open
        {
            self.next_nudge(cx, 0);
        }
    }

    /// Stops the timer: the peer has sent something.
    pub(super) fn end_nudges(&mut self, cx: &mut Context) {
        if let Some(stream) = &mut self.stream {
            let was = core::mem::replace(&mut stream.nudge, Nudge::Done);
            if stream.phase == Phase::Open && matches!(was, Nudge::Next(_)) {
                self.set_deadline(cx, None);
            }
        }
    }

    fn next_nudge(&mut self, cx: &mut Context, number: u8) {
        match NUDGES.get(usize::from(number)) {
            Some(delay) => {
                self.stream().nudge = Nudge::Next(number);
                self.set_deadline(cx, Some(cx.now + *delay));
            }
            None => self.stream().nudge = Nudge::Done,
        }
    }

    /// Sends a nudge if the deadline was that of one. Returns false if it was not.
    pub(super) fn nudge(&mut self, cx: &mut Context) -> bool {
        let is_rts = self.state == QpState::Rts;
        let Some(stream) = &self.stream else {
            return false;
        };
        let (Nudge::Next(number), Phase::Open) = (stream.nudge, stream.phase) else {
            return false;
        };
        // Bytes that wait for the socket will wake the peer, too.
        if is_rts && stream.current.is_none() && stream.output.is_empty() {
            self.write_empty_write(cx, STAG);
            self.wake(cx);
        }
        self.next_nudge(cx, number + 1);
        true
    }
}
