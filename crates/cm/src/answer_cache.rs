//! Refusals that are remembered after their connection is gone.
//!
//! REJ and SIDR_REP are sent once. If one is lost, the peer repeats its message,
//! and without a memory that would be a new request: the program would be asked
//! twice. So the answer stays for as long as the peer may go on repeating. The
//! number of entries is limited, because peers cause them; who is forgotten
//! early is merely asked again.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use crate::connection::RemoteKey;
use crate::{Address, Mad, Time};

/// Which message is answered.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Asked {
    /// A REQ of this peer.
    Req(RemoteKey),
    /// A REP to our REQ with this communication ID.
    Rep(u32),
    /// A SIDR_REQ from this address with this request ID.
    Sidr(IpAddr, u32),
}

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) address: Address,
    pub(crate) mad: Box<Mad>,
    until: Time,
}

#[derive(Debug)]
pub(crate) struct Remembered {
    answers: BTreeMap<Asked, Answer>,
    expiry: BTreeSet<(Time, Asked)>,
    max: usize,
}

impl Remembered {
    pub(crate) fn new(max: usize) -> Remembered {
        Remembered {
            answers: BTreeMap::new(),
            expiry: BTreeSet::new(),
            max,
        }
    }

    pub(crate) fn insert(
        &mut self,
        (now, horizon): (Time, Duration),
        asked: Asked,
        address: Address,
        mad: Mad,
    ) {
        self.forget(asked);
        if self.answers.len() >= self.max
            && let Some((_, oldest)) = self.expiry.first().copied()
        {
            self.forget(oldest);
        }
        if self.max == 0 {
            return;
        }
        let until = now + horizon;
        self.expiry.insert((until, asked));
        let mad = Box::new(mad);
        let answer = Answer {
            address,
            mad,
            until,
        };
        self.answers.insert(asked, answer);
    }

    pub(crate) fn get(&self, asked: Asked) -> Option<&Answer> {
        self.answers.get(&asked)
    }

    fn forget(&mut self, asked: Asked) {
        if let Some(answer) = self.answers.remove(&asked) {
            self.expiry.remove(&(answer.until, asked));
        }
    }

    pub(crate) fn expire(&mut self, now: Time) {
        while let Some((until, asked)) = self.expiry.first().copied()
            && until <= now
        {
            self.forget(asked);
        }
    }

    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.expiry.first().map(|(until, _)| *until)
    }

    pub(crate) fn len(&self) -> usize {
        self.answers.len()
    }
}
