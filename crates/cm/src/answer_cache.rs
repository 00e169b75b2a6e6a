//! A cache of answers whose connection or SIDR request is gone.
//!
//! REJ and SIDR_REP are sent once. If one is lost, the peer retransmits its message. Without
//! this cache the retransmission would look like a new request, and the program would get
//! it twice. So an answer is kept for as long as the peer may retransmit.
//!
//! Peers cause the entries, so their number is limited. If an entry is evicted early, a
//! retransmission becomes a new request; no other harm is done.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use crate::connection::RemoteKey;
use crate::{Address, Mad, Time};

/// The message that an answer is for.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum AnswerKey {
    /// A REQ of this peer.
    Req(RemoteKey),
    /// A REP to our REQ with this communication ID.
    Rep(u32),
    /// A SIDR_REQ from this address with this request ID.
    Sidr(IpAddr, u32),
}

#[derive(Clone, Debug)]
pub(crate) struct CachedAnswer {
    pub(crate) address: Address,
    pub(crate) mad: Box<Mad>,
    until: Time,
}

#[derive(Debug)]
pub(crate) struct AnswerCache {
    answers: BTreeMap<AnswerKey, CachedAnswer>,
    expiry: BTreeSet<(Time, AnswerKey)>,
    max: usize,
}

impl AnswerCache {
    pub(crate) fn new(max: usize) -> AnswerCache {
        AnswerCache {
            answers: BTreeMap::new(),
            expiry: BTreeSet::new(),
            max,
        }
    }

    /// Keeps an answer until `now + horizon`. If the cache is full, the entry that expires
    /// first is removed.
    pub(crate) fn insert(
        &mut self,
        (now, horizon): (Time, Duration),
        key: AnswerKey,
        address: Address,
        mad: Mad,
    ) {
        self.remove(key);
        if self.answers.len() >= self.max
            && let Some((_, oldest)) = self.expiry.first().copied()
        {
            self.remove(oldest);
        }
        if self.max == 0 {
            return;
        }
        let until = now + horizon;
        self.expiry.insert((until, key));
        let mad = Box::new(mad);
        let answer = CachedAnswer {
            address,
            mad,
            until,
        };
        self.answers.insert(key, answer);
    }

    pub(crate) fn get(&self, key: AnswerKey) -> Option<&CachedAnswer> {
        self.answers.get(&key)
    }

    fn remove(&mut self, key: AnswerKey) {
        if let Some(answer) = self.answers.remove(&key) {
            self.expiry.remove(&(answer.until, key));
        }
    }

    pub(crate) fn expire(&mut self, now: Time) {
        while let Some((until, key)) = self.expiry.first().copied()
            && until <= now
        {
            self.remove(key);
        }
    }

    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.expiry.first().map(|(until, _)| *until)
    }

    pub(crate) fn len(&self) -> usize {
        self.answers.len()
    }
}
