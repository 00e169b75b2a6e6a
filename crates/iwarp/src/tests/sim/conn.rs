//! A connection of a run: two queue pairs, two pipes, and what the oracle knows about them.

use std::collections::VecDeque;

use super::arena::Pattern;
use super::pipe::Pipe;
use crate::Time;
use crate::mpa::{Initiator, Responder};

/// The progress of a connection's setup at one end.
#[derive(Debug)]
pub(super) enum Setup {
    Initiator(Box<Initiator>),
    Responder(Box<Responder>),
    Done,
}

/// A posted send.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) signaled: bool,
    /// Payload bytes of this and all earlier SENDs and WRITEs.
    pub(super) payload: u64,
    /// Sink, length and content of a READ.
    pub(super) read: Option<(u64, u32, Pattern)>,
}

/// A posted receive.
#[derive(Copy, Clone, Debug)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) start: u64,
    pub(super) length: u32,
}

/// A message that the peer has posted.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) length: u32,
    pub(super) pattern: Pattern,
    /// Key that the message invalidates.
    pub(super) invalidates: Option<u32>,
    /// WRITEs that were posted before: start, length and content at the receiver.
    pub(super) writes: Vec<(u64, u32, Pattern)>,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) qpn: u32,
    pub(super) setup: Setup,
    /// Bytes of the setup that are not sent yet.
    pub(super) raw: Vec<u8>,
    /// True between the events Established and Closed.
    pub(super) ready: bool,
    pub(super) closed: bool,
    pub(super) sends: VecDeque<Posted>,
    pub(super) receives: VecDeque<Receive>,
    /// Messages that this end will receive, in order.
    pub(super) expected: VecDeque<Expected>,
    /// WRITEs of this end since its last SEND.
    pub(super) writes: Vec<(u64, u32, Pattern)>,
    /// Payload bytes of all posted SENDs and WRITEs.
    pub(super) payload: u64,
    /// Bytes of FPDUs that the socket has accepted.
    pub(super) accepted: u64,
    /// True if a completion with an error has been seen.
    pub(super) send_failed: bool,
    pub(super) receive_failed: bool,
}

impl End {
    pub(super) fn new(qpn: u32, setup: Setup) -> End {
        End {
            qpn,
            setup,
            raw: Vec::new(),
            ready: false,
            closed: false,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            expected: VecDeque::new(),
            writes: Vec::new(),
            payload: 0,
            accepted: 0,
            send_failed: false,
            receive_failed: false,
        }
    }

    /// Returns the time until which the peer must have answered the setup.
    pub(super) fn setup_deadline(&self) -> Option<Time> {
        match &self.setup {
            _ if self.closed => None,
            Setup::Initiator(initiator) => Some(initiator.deadline()),
            Setup::Responder(responder) => responder.deadline(),
            Setup::Done => None,
        }
    }

    /// True if the setup has taken too long.
    pub(super) fn setup_timed_out(&self, now: Time) -> bool {
        match &self.setup {
            Setup::Initiator(initiator) => initiator.check_deadline(now).is_err(),
            Setup::Responder(responder) => responder.check_deadline(now).is_err(),
            Setup::Done => false,
        }
    }

    pub(super) fn is_set_up(&self) -> bool {
        matches!(self.setup, Setup::Done)
    }
}

/// A connection. End 0 is the initiator; `pipes[n]` leads away from end `n`.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) ends: [End; 2],
    pub(super) pipes: [Pipe; 2],
    pub(super) crc: bool,
    pub(super) mss: u32,
    /// The reason why the connection may fail.
    pub(super) fault: Option<&'static str>,
    /// The end whose program has disconnected, if nothing else has disturbed the connection.
    pub(super) orderly: Option<usize>,
}
