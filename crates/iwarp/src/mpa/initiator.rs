//! The initiator's side of connection setup.

use super::error::{ArgumentError, SetupError};
use super::frame::{Enhanced, Flags, Frame, FrameKind, PrivateData};
use super::reader::Reader;
use super::{MAX_READS, Params, REPLY_TIMEOUT, Role, Rtr};
use crate::Time;

/// The properties that an initiator offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// True to ask for CRCs. siw does not ask.
    pub crc: bool,
    /// Reads of the peer that the queue pair can hold.
    pub ird: u16,
    /// Reads that the program wants to have outstanding.
    pub ord: u16,
    /// True for revision 2 with IRD and ORD, as siw offers; false for revision 1, which older
    /// adapters need.
    pub enhanced: bool,
    /// The RTR frames of peer-to-peer mode that this end can send, by preference. Empty
    /// without peer-to-peer mode, which is siw's default.
    pub rtr: Vec<Rtr>,
    /// The program's private data.
    pub private_data: Vec<u8>,
}

impl Default for Offer {
    fn default() -> Offer {
        Offer {
            crc: false,
            ird: 1,
            ord: 1,
            enhanced: true,
            rtr: Vec::new(),
            private_data: Vec::new(),
        }
    }
}

/// The outcome of received bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Replied {
    /// The Reply is not complete.
    Wait,
    /// The responder accepted. Bytes after `taken` are the responder's first FPDUs.
    Accepted {
        /// Number of bytes up to the end of the Reply.
        taken: usize,
        /// Properties of the stream.
        params: Params,
        /// The responder's private data.
        private_data: PrivateData,
    },
    /// The responder rejected the connection.
    Rejected {
        /// The responder's private data.
        private_data: PrivateData,
    },
}

/// The initiator of a connection, from the Request to the Reply.
#[derive(Clone, Debug)]
pub struct Initiator {
    request: Frame,
    /// IRD, ORD and RTR frames that the program asked for; revision 1 does not send them.
    offered: Enhanced,
    reader: Reader,
    deadline: Time,
}

impl Initiator {
    /// Starts the setup on a TCP connection. The caller sends [`Initiator::request`].
    pub fn new(now: Time, offer: &Offer) -> Result<Initiator, ArgumentError> {
        for (name, value) in [("IRD", offer.ird), ("ORD", offer.ord)] {
            if value > MAX_READS {
                return Err(ArgumentError::Depth { name, value });
            }
        }
        let private_data = PrivateData::new(&offer.private_data, offer.enhanced)?;
        let peer_to_peer = offer.enhanced && !offer.rtr.is_empty();
        let offered = Enhanced {
            ird: offer.ird,
            // The RTR frame may become a Read.
            ord: offer.ord.max(u16::from(peer_to_peer)),
            peer_to_peer,
            rtr_send: false,
            rtr_write: offer.rtr.contains(&Rtr::Write),
            rtr_read: offer.rtr.contains(&Rtr::Read),
        };
        let mut flags = Flags::empty();
        flags.set(Flags::CRC, offer.crc);
        flags.set(Flags::ENHANCED, offer.enhanced);
        Ok(Initiator {
            request: Frame {
                kind: FrameKind::Request,
                flags,
                revision: 1 + u8::from(offer.enhanced),
                enhanced: offer.enhanced.then_some(offered),
                private_data,
            },
            offered,
            reader: Reader::new(FrameKind::Reply),
            deadline: now + REPLY_TIMEOUT,
        })
    }

    /// Returns the Request to send.
    pub fn request(&self) -> Vec<u8> {
        self.request.encode()
    }

    /// Returns the time by which the Reply must have come.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Checks the deadline.
    pub fn check_deadline(&self, now: Time) -> Result<(), SetupError> {
        match now < self.deadline {
            true => Ok(()),
            false => Err(SetupError::Timeout(FrameKind::Reply)),
        }
    }

    /// Returns the error of a peer that has closed the connection before its Reply.
    pub fn peer_closed(&self) -> SetupError {
        SetupError::PeerClosed
    }

    /// Takes received bytes.
    ///
    /// siw treats bytes behind the Reply as an error, although its own responder may send
    /// FPDUs right after the Reply. Here they belong to the stream.
    pub fn receive(&mut self, input: &[u8]) -> Result<Replied, SetupError> {
        let (taken, reply) = self.reader.receive(input)?;
        let Some(reply) = reply else {
            return Ok(Replied::Wait);
        };
        if reply.flags.contains(Flags::REJECT) {
            return Ok(Replied::Rejected {
                private_data: reply.private_data,
            });
        }
        if reply.flags.contains(Flags::MARKERS) {
            return Err(SetupError::Markers);
        }
        Ok(Replied::Accepted {
            taken,
            params: self.negotiate(&reply)?,
            private_data: reply.private_data,
        })
    }

    fn negotiate(&self, reply: &Frame) -> Result<Params, SetupError> {
        let offered = self.offered;
        // RFC 5044 7.1: CRCs are used if either end asks for them. The Reply decides: a
        // responder repeats the initiator's flag.
        let crc = reply.flags.contains(Flags::CRC);
        let mut params = Params {
            role: Role::Initiator,
            crc,
            ird: offered.ird,
            ord: offered.ord,
            rtr: None,
        };
        if self.request.enhanced.is_none() {
            return Ok(params);
        }
        // RFC 6581 section 6: the Reply to an enhanced Request is enhanced.
        let Some(granted) = reply.enhanced else {
            return Err(SetupError::NotEnhanced {
                revision: reply.revision,
            });
        };
        if granted.ord > offered.ird && granted.ord > MAX_READS {
            return Err(SetupError::InsufficientIrd { asked: granted.ord });
        }
        params.ird = granted.ord.min(MAX_READS);
        params.ord = granted.ird.min(MAX_READS);
        if offered.peer_to_peer {
            params.rtr = Some(match (granted.rtr_write, granted.rtr_read) {
                (true, _) if offered.rtr_write => Rtr::Write,
                (_, true) if offered.rtr_read => Rtr::Read,
                _ => return Err(SetupError::NoMatchingRtr),
            });
        }
        Ok(params)
    }
}
