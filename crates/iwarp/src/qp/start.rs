//! The first messages of a stream, with a peer that may overlook or refuse them.
//!
//! The kernel's siw has a gap at each end of a connection:
//!
//! - Its responder sends the Reply before it connects the socket with the queue pair. An FPDU
//!   that arrives in between stays in the socket, unread, until more bytes arrive. A program
//!   that sends one message and waits for the answer would wait for ever. So an initiator
//!   that has received nothing sends Writes of no bytes after its first message, the *nudges*.
//!   They name no memory, so any peer ignores them, as it ignores the RTR frame of RFC 6581.
//!   The peer's first bytes do not show that it has read ours: its program may speak first. They
//!   show that bytes which are sent from now on will be noticed. So one more nudge follows if
//!   both ends fall silent then. It does not follow at once: a peer that answers and closes
//!   would reset the connection, and TCP would drop the part of the answer that is still under way.
//! - Its initiator resets a connection on which bytes follow the Reply before it has read the
//!   Reply. RFC 5044 lets the responder send only after the initiator's first FPDU. So a
//!   responder *holds* its messages back until then. siw's initiator may send nothing for
//!   long, so the time is limited. Initiators of this engine announce themselves at once.

use core::time::Duration;

use ferroce_objects::QpState;

use super::{CLOSE_TIMEOUT, Phase, Qp};
use crate::engine::Context;
use crate::mpa::Role;

/// Times between the first message and the nudges. The gap in siw takes some microseconds,
/// and milliseconds in an emulated guest.
pub const NUDGES: [Duration; 4] = [
    Duration::from_millis(2),
    Duration::from_millis(20),
    Duration::from_millis(200),
    Duration::from_secs(2),
];

/// Time for which both ends must be silent after the peer's first bytes, before the last nudge. A
/// lost segment at the end of an answer is sent again before, after TCP's least timeout of
/// 200 ms.
pub const SILENCE: Duration = Duration::from_millis(250);

/// Time for which a responder waits for the initiator's first byte before it sends.
pub const HOLD: Duration = Duration::from_millis(50);

/// STag of a Write of no bytes, as in siw's RTR frame.
const STAG: u32 = 1;

/// The state of a stream's start.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// The peer has read all, or there is nothing to wait for.
    Done,
    /// The responder holds its messages back until the stream's deadline.
    Held,
    /// The initiator has sent nothing yet.
    Silent,
    /// The initiator has sent; the stream's deadline is the time of this nudge.
    Nudge(u8),
    /// The initiator has sent, and then received. The stream's deadline is the end of a silence.
    /// True if bytes have arrived since it began.
    Heard(bool),
}

impl Qp {
    /// Begins the start of a stream in phase Open.
    pub(super) fn begin_start(&mut self, cx: &mut Context) {
        let params = self.stream().params;
        match params.role {
            Role::Initiator => {
                self.stream().start = Start::Silent;
                if params.rtr.is_none() && cx.config.careful_start {
                    self.write_empty_write(cx, STAG);
                }
            }
            Role::Responder if cx.config.careful_start => {
                self.stream().start = Start::Held;
                self.set_deadline(cx, Some(cx.now + HOLD));
            }
            Role::Responder => {}
        }
    }

    /// True if messages are held back.
    pub(super) fn is_held(&mut self) -> bool {
        self.stream().start == Start::Held
    }

    /// Ends the hold. Returns false if there is none.
    pub(crate) fn end_hold(&mut self, cx: &mut Context) -> bool {
        let is_held = self.stream.as_ref().is_some_and(|s| s.start == Start::Held);
        if is_held {
            self.end_start(cx);
        }
        is_held
    }

    /// Notes that the socket has accepted bytes. The first ones start the timer of nudges. Those
    /// after the peer's first bytes end the start.
    pub(super) fn arm_nudge(&mut self, cx: &mut Context) {
        let Some(stream) = self.stream.as_ref().filter(|s| s.phase == Phase::Open) else {
            return;
        };
        match stream.start {
            Start::Silent => self.set_nudge(cx, 0),
            Start::Heard(_) => {
                self.stream().start = Start::Done;
                self.set_deadline(cx, None);
            }
            Start::Done | Start::Held | Start::Nudge(_) => {}
        }
    }

    /// Notes that the peer has sent something.
    pub(super) fn hear(&mut self, cx: &mut Context) {
        let Some(stream) = self.stream.as_mut() else {
            return;
        };
        match stream.start {
            Start::Heard(_) => stream.start = Start::Heard(true),
            Start::Nudge(_) if stream.phase == Phase::Open => {
                stream.start = Start::Heard(false);
                self.set_deadline(cx, Some(cx.now + SILENCE));
            }
            _ => self.end_start(cx),
        }
    }

    /// Ends the start.
    fn end_start(&mut self, cx: &mut Context) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let was = core::mem::replace(&mut stream.start, Start::Done);
        if matches!(was, Start::Nudge(_) | Start::Held) {
            let deadline = match stream.phase {
                // The program has ended the connection during the hold.
                Phase::Finishing => Some(cx.now + CLOSE_TIMEOUT),
                _ => None,
            };
            self.set_deadline(cx, deadline);
        }
        if was == Start::Held {
            self.wake(cx);
        }
    }

    fn set_nudge(&mut self, cx: &mut Context, number: u8) {
        match NUDGES.get(usize::from(number)) {
            Some(delay) => {
                self.stream().start = Start::Nudge(number);
                self.set_deadline(cx, Some(cx.now + *delay));
            }
            None => self.stream().start = Start::Done,
        }
    }

    /// Handles the deadline of a start. Returns false if the deadline was another one.
    pub(super) fn start_timed_out(&mut self, cx: &mut Context) -> bool {
        let is_rts = self.state == QpState::Rts;
        let Some(stream) = &self.stream else {
            return false;
        };
        match stream.start {
            Start::Done | Start::Silent => return false,
            Start::Held => self.end_start(cx),
            Start::Nudge(number) => {
                // Bytes that wait for the socket will wake the peer, too.
                if is_rts && stream.current.is_none() && stream.output.is_empty() {
                    self.write_empty_write(cx, STAG);
                    self.wake(cx);
                }
                self.set_nudge(cx, number + 1);
            }
            Start::Heard(has_arrived) if has_arrived || !stream.is_between_messages() => {
                self.stream().start = Start::Heard(false);
                self.set_deadline(cx, Some(cx.now + SILENCE));
            }
            Start::Heard(_) => {
                let is_idle = stream.current.is_none() && stream.output.is_empty();
                self.stream().start = Start::Done;
                if is_rts && is_idle {
                    self.write_empty_write(cx, STAG);
                    self.wake(cx);
                }
            }
        }
        true
    }
}
