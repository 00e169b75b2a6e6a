//! Service ID resolution (SIDR): finds the queue pair that serves a datagram service.
//!
//! SIDR is one request and one reply. It makes no connection.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use crate::answer_cache::AnswerKey;
use crate::cm::release;
use crate::listener::Found;
use crate::mad::MAD_LEN;
use crate::message::{Message, SidrRep, SidrReq, SidrStatus};
use crate::{
    Address, CallError, Cm, Ece, Event, Ignored, ListenerId, Mad, PrivateData, Reason,
    SidrIncoming, Time, duration,
};

/// Handle of a SIDR request, sent or received.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct SidrId(pub(crate) u32);

/// The parameters of a SIDR request to a peer.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SidrRequest {
    /// Addresses of this node and the peer.
    pub address: Address,
    /// The requested service.
    pub service_id: u64,
    /// Private data. For a service of rdma_cm it starts with the rdma_cm header.
    pub private_data: PrivateData<216>,
}

/// A program's answer to a SIDR request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SidrAnswer {
    /// [`SidrStatus::VALID`], or the reason of the rejection.
    pub status: SidrStatus,
    /// Number of the queue pair that serves the service.
    pub qpn: u32,
    /// Q_Key that datagrams to the queue pair must carry.
    pub qkey: u32,
    /// Enhanced connection establishment.
    pub ece: Ece,
    /// Private data.
    pub private_data: PrivateData<136>,
}

#[derive(Debug)]
enum Side {
    /// This node has sent the request.
    Active {
        deadline: Time,
        retries_left: u8,
        repeat: Box<[u8; MAD_LEN]>,
    },
    /// A peer has sent the request.
    Passive {
        request_id: u32,
        tid: u64,
        service_id: u64,
        pending_for: Option<ListenerId>,
    },
}

#[derive(Debug)]
struct Sidr {
    address: Address,
    side: Side,
}

#[derive(Default, Debug)]
pub(crate) struct Sidrs {
    by_id: BTreeMap<u32, Sidr>,
    /// Received requests by the peer's address and request ID.
    by_remote: BTreeMap<(IpAddr, u32), u32>,
    timers: BTreeSet<(Time, u32)>,
}

impl Sidrs {
    pub(crate) fn contains(&self, id: u32) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.by_remote.is_empty() && self.timers.is_empty()
    }

    fn remove(&mut self, id: u32) -> Option<Sidr> {
        let sidr = self.by_id.remove(&id)?;
        match &sidr.side {
            Side::Active { deadline, .. } => {
                self.timers.remove(&(*deadline, id));
            }
            Side::Passive { request_id, .. } => {
                self.by_remote.remove(&(sidr.address.remote, *request_id));
            }
        }
        Some(sidr)
    }
}

impl Cm {
    /// Sends a SIDR request. An event reports the answer.
    pub fn sidr_request(&mut self, now: Time, request: &SidrRequest) -> SidrId {
        let id = self.new_id();
        let req = SidrReq {
            request_id: id,
            pkey: 0xffff,
            service_id: request.service_id,
            private_data: request.private_data,
        };
        let mad = Mad {
            tid: self.new_tid(id),
            modifier: 0,
            message: Message::SidrReq(req),
        }
        .encode();
        self.out.send(request.address, &mad);
        let deadline = now + duration(self.config.response_timeout);
        self.sidrs.timers.insert((deadline, id));
        let side = Side::Active {
            deadline,
            retries_left: self.config.max_retries,
            repeat: Box::new(mad),
        };
        let address = request.address;
        self.sidrs.by_id.insert(id, Sidr { address, side });
        SidrId(id)
    }

    /// Answers a peer's SIDR request. The request is gone.
    ///
    /// # Errors
    /// If there is no such request of a peer.
    pub fn sidr_answer(
        &mut self,
        now: Time,
        sidr: SidrId,
        answer: &SidrAnswer,
    ) -> Result<(), CallError> {
        let passive = self.sidrs.by_id.get(&sidr.0);
        let passive = passive.is_some_and(|s| matches!(s.side, Side::Passive { .. }));
        if !passive {
            return Err(CallError::Unknown);
        }
        let Some(Sidr {
            address,
            side:
                Side::Passive {
                    request_id,
                    tid,
                    service_id,
                    mut pending_for,
                },
        }) = self.sidrs.remove(sidr.0)
        else {
            unreachable!("the request is a peer's");
        };
        release(&mut self.listeners, &mut pending_for);
        let mad = make_rep(tid, request_id, service_id, answer);
        self.out.send(address, &mad.encode());
        let retries = u32::from(self.config.max_retries) + 1;
        let horizon = duration(self.config.response_timeout) * retries;
        let key = AnswerKey::Sidr(address.remote, request_id);
        self.answer_cache.insert((now, horizon), key, address, mad);
        Ok(())
    }

    /// Records that the program has taken a SIDR request, which then no longer counts
    /// against the backlog.
    ///
    /// # Errors
    /// If there is no such request of a peer.
    pub fn sidr_taken(&mut self, sidr: SidrId) -> Result<(), CallError> {
        let sidr = self.sidrs.by_id.get_mut(&sidr.0);
        match sidr.map(|s| &mut s.side) {
            Some(Side::Passive { pending_for, .. }) => {
                release(&mut self.listeners, pending_for);
                Ok(())
            }
            _ => Err(CallError::Unknown),
        }
    }

    /// Ends a SIDR request that the program has given up. A peer's request is rejected.
    ///
    /// # Errors
    /// If there is no such request.
    pub fn sidr_destroy(&mut self, now: Time, sidr: SidrId) -> Result<(), CallError> {
        self.events.retain(|event| event.sidr() != Some(sidr));
        if self.sidr_answer(now, sidr, &REFUSED).is_ok() {
            return Ok(());
        }
        let removed = self.sidrs.remove(sidr.0);
        removed.map(|_| ()).ok_or(CallError::Unknown)
    }

    /// Rejects all requests in the backlog of a listener.
    pub(crate) fn sidr_refuse_all(&mut self, now: Time, listener: ListenerId) {
        let pending = |s: &Sidr| match s.side {
            Side::Passive { pending_for, .. } => pending_for == Some(listener),
            Side::Active { .. } => false,
        };
        let all = self.sidrs.by_id.iter();
        let waiting: Vec<u32> = all.filter(|(_, s)| pending(s)).map(|(id, _)| *id).collect();
        for id in waiting {
            self.sidr_destroy(now, SidrId(id))
                .expect("the request is in the table");
        }
    }

    pub(crate) fn handle_sidr_req(
        &mut self,
        now: Time,
        address: Address,
        mad: &Mad,
        req: &SidrReq,
    ) -> Result<(), Ignored> {
        let key = (address.remote, req.request_id);
        if self.sidrs.by_remote.contains_key(&key) {
            return Err(Ignored::Duplicate);
        }
        if let Some(answer) = self.answer_cache.get(AnswerKey::Sidr(key.0, key.1))
            && answer.address == address
        {
            self.out.send(address, &answer.mad.encode());
            return Err(Ignored::Duplicate);
        }
        let (listener, ip) = match self
            .listeners
            .find(req.service_id, address, &req.private_data)
        {
            Found::Listener(listener, ip) => (listener, ip),
            Found::Full => return Err(Ignored::Backlog),
            Found::Refused(_) if self.holds_refusals(now) => return Err(Ignored::NotYet),
            Found::Refused(Reason::INVALID_SERVICE_ID)
                if self.gaps.hold(now, req.service_id, address, mad) =>
            {
                return Err(Ignored::NotYet);
            }
            Found::Refused(reason) => {
                let status = match reason {
                    Reason::INVALID_SERVICE_ID => SidrStatus::UNSUPPORTED_SERVICE,
                    _ => SidrStatus::REJECTED,
                };
                let answer = SidrAnswer { status, ..REFUSED };
                let rep = make_rep(mad.tid, req.request_id, req.service_id, &answer);
                self.out.send(address, &rep.encode());
                return Ok(());
            }
        };
        let id = self.new_id();
        let side = Side::Passive {
            request_id: req.request_id,
            tid: mad.tid,
            service_id: req.service_id,
            pending_for: Some(listener),
        };
        self.sidrs.by_id.insert(id, Sidr { address, side });
        self.sidrs.by_remote.insert(key, id);
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.pending += 1;
        }
        self.events
            .push_back(Event::SidrRequest(Box::new(SidrIncoming {
                sidr: SidrId(id),
                listener,
                address,
                service_id: req.service_id,
                ip,
                private_data: req.private_data,
            })));
        Ok(())
    }

    pub(crate) fn handle_sidr_rep(
        &mut self,
        address: Address,
        mad: &Mad,
        rep: &SidrRep,
    ) -> Result<(), Ignored> {
        let id = rep.request_id;
        let sidr = self.sidrs.by_id.get(&id);
        let sidr = sidr.filter(|s| matches!(s.side, Side::Active { .. }));
        if sidr.ok_or(Ignored::UnknownId)?.address != address {
            return Err(Ignored::Address);
        }
        self.sidrs.remove(id);
        self.events.push_back(Event::SidrReply {
            sidr: SidrId(id),
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            ece: Ece {
                vendor_id: rep.vendor_id,
                options: mad.modifier,
            },
            private_data: Box::new(rep.private_data),
        });
        Ok(())
    }

    pub(crate) fn sidr_timeouts(&mut self, now: Time) {
        let interval = duration(self.config.response_timeout);
        while let Some((time, id)) = self.sidrs.timers.first().copied()
            && time <= now
        {
            self.sidrs.timers.pop_first();
            let sidr = self
                .sidrs
                .by_id
                .get_mut(&id)
                .expect("timers name SIDR requests");
            let Side::Active {
                deadline,
                retries_left,
                repeat,
            } = &mut sidr.side
            else {
                unreachable!("only requests of this node have timers");
            };
            if *retries_left == 0 {
                self.sidrs.remove(id);
                let sidr = SidrId(id);
                self.events.push_back(Event::SidrUnreachable { sidr });
                continue;
            }
            *retries_left -= 1;
            *deadline = now + interval;
            self.out.send(sidr.address, repeat);
            self.sidrs.timers.insert((now + interval, id));
        }
    }
}

const REFUSED: SidrAnswer = SidrAnswer {
    status: SidrStatus::REJECTED,
    qpn: 0,
    qkey: 0,
    ece: Ece {
        vendor_id: 0,
        options: 0,
    },
    private_data: PrivateData::EMPTY,
};

fn make_rep(tid: u64, request_id: u32, service_id: u64, answer: &SidrAnswer) -> Mad {
    Mad {
        tid,
        modifier: answer.ece.options,
        message: Message::SidrRep(SidrRep {
            request_id,
            status: answer.status,
            info_len: 0,
            vendor_id: answer.ece.vendor_id,
            qpn: answer.qpn,
            service_id,
            qkey: answer.qkey,
            info: [0; 72],
            private_data: answer.private_data,
        }),
    }
}
