//! The responder's side of connection setup.

use super::error::{ArgumentError, FrameError, SetupError};
use super::frame::{Enhanced, Flags, Frame, FrameKind, PrivateData};
use super::reader::Reader;
use super::{MAX_READS, Params, REQUEST_TIMEOUT, Role, Rtr};
use crate::Time;

/// A Request, as the program sees it: `RDMA_CM_EVENT_CONNECT_REQUEST`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// IRD that the initiator's ORD asks for, within this end's limit.
    pub ird: u16,
    /// ORD that the initiator's IRD allows, within this end's limit.
    pub ord: u16,
    /// The initiator's private data.
    pub private_data: PrivateData,
}

/// The program's acceptance: `rdma_accept`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// Reads of the peer that the queue pair can hold (`responder_resources`).
    pub ird: u16,
    /// Reads that the program wants to have outstanding (`initiator_depth`).
    pub ord: u16,
    /// True to use CRCs even if the initiator does not ask for them.
    pub crc: bool,
    /// The program's private data.
    pub private_data: Vec<u8>,
}

/// The responder of a connection, from the TCP connection to the Reply.
#[derive(Clone, Debug)]
pub struct Responder {
    reader: Reader,
    deadline: Time,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// The Request is not complete.
    Reading,
    /// The program decides about the Request.
    Asking(Box<Frame>),
    /// The Reply has been made.
    Done,
}

impl Responder {
    /// Starts the setup on an accepted TCP connection.
    pub fn new(now: Time) -> Responder {
        Responder {
            reader: Reader::new(FrameKind::Request),
            deadline: now + REQUEST_TIMEOUT,
            state: State::Reading,
        }
    }

    /// Returns the time by which the Request must have come, until it has come.
    pub fn deadline(&self) -> Option<Time> {
        matches!(self.state, State::Reading).then_some(self.deadline)
    }

    /// Checks the deadline.
    pub fn check_deadline(&self, now: Time) -> Result<(), SetupError> {
        match self.deadline() {
            Some(deadline) if now >= deadline => Err(SetupError::Timeout(FrameKind::Request)),
            _ => Ok(()),
        }
    }

    /// Takes received bytes. Returns the Request once it is complete.
    ///
    /// RFC 5044 7.1.2: the initiator sends nothing between its Request and the Reply. If the
    /// error is [`SetupError::Markers`], the caller sends [`Responder::refusal`].
    pub fn receive(&mut self, input: &[u8]) -> Result<Option<Request>, SetupError> {
        if !matches!(self.state, State::Reading) {
            return match input {
                [] => Ok(None),
                _ => Err(FrameError::Extra(input.len()).into()),
            };
        }
        let (taken, request) = self.reader.receive(input)?;
        let Some(frame) = request else {
            return Ok(None);
        };
        if taken < input.len() {
            return Err(FrameError::Extra(input.len() - taken).into());
        }
        let asked = frame.enhanced.unwrap_or_default();
        let request = Request {
            ird: asked.ord.min(MAX_READS),
            ord: asked.ird.min(MAX_READS),
            private_data: frame.private_data.clone(),
        };
        let markers = frame.flags.contains(Flags::MARKERS);
        self.state = State::Asking(Box::new(frame));
        match markers {
            true => Err(SetupError::Markers),
            false => Ok(Some(request)),
        }
    }

    /// Returns the Request as it was received, until it is answered.
    pub fn request(&self) -> Option<Vec<u8>> {
        match &self.state {
            State::Asking(request) => Some(request.encode()),
            State::Reading | State::Done => None,
        }
    }

    /// Returns the error of a peer that has closed the connection before the Reply.
    pub fn peer_closed(&self) -> SetupError {
        SetupError::PeerClosed
    }

    /// Accepts the connection. Returns the Reply to send and the properties of the stream.
    pub fn accept(&mut self, answer: &Answer) -> Result<(Vec<u8>, Params), ArgumentError> {
        let State::Asking(request) = &self.state else {
            return Err(ArgumentError::NoRequest);
        };
        for (name, value) in [("IRD", answer.ird), ("ORD", answer.ord)] {
            if value > MAX_READS {
                return Err(ArgumentError::Depth { name, value });
            }
        }
        let private_data = PrivateData::new(&answer.private_data, request.enhanced.is_some())?;
        let mut params = Params {
            role: Role::Responder,
            // RFC 5044 7.1: the flag in the Reply turns CRCs on in both directions.
            crc: answer.crc || request.flags.contains(Flags::CRC),
            ird: answer.ird,
            ord: answer.ord,
            rtr: None,
        };
        let enhanced = request.enhanced.map(|asked| {
            // RFC 6581 9.1: an end has no more Reads outstanding than the peer holds.
            params.ord = answer.ord.min(asked.ird);
            // siw raises its IRD to the initiator's ORD ("relaxed negotiation").
            params.ird = answer.ird.max(asked.ord.min(MAX_READS));
            params.rtr = match (asked.peer_to_peer, asked.rtr_write, asked.rtr_read) {
                (true, true, _) => Some(Rtr::Write),
                (true, false, true) => Some(Rtr::Read),
                _ => None,
            };
            Enhanced {
                ird: params.ird,
                ord: params.ord,
                peer_to_peer: asked.peer_to_peer,
                rtr_send: false,
                rtr_write: params.rtr == Some(Rtr::Write),
                rtr_read: params.rtr == Some(Rtr::Read),
            }
        });
        let mut reply = Frame {
            kind: FrameKind::Reply,
            enhanced,
            private_data,
            ..*request.clone()
        };
        reply.flags.set(Flags::CRC, params.crc);
        self.state = State::Done;
        Ok((reply.encode(), params))
    }

    /// Rejects the connection. Returns the Reply to send.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<Vec<u8>, ArgumentError> {
        let State::Asking(request) = &self.state else {
            return Err(ArgumentError::NoRequest);
        };
        let reply = Frame {
            kind: FrameKind::Reply,
            flags: (request.flags | Flags::REJECT).difference(Flags::MARKERS),
            private_data: PrivateData::new(private_data, request.enhanced.is_some())?,
            ..*request.clone()
        };
        self.state = State::Done;
        Ok(reply.encode())
    }

    /// Returns the Reply to a Request that asks for markers: a rejection.
    pub fn refusal(&mut self) -> Option<Vec<u8>> {
        self.reject(&[]).ok()
    }
}
