//! The list of a program's objects on a device, for `rdma resource`.
//!
//! The control client's thread collects the list when a client asks. Only the shared receive queues
//! are recorded for it beforehand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferroce_control::resources::{
    CqResource, MrKeys, MrResource, PdResource, QpResource, Resources, SrqResource,
};
use ferroce_roce::{QpQuery, QpState, QpType, Regions, Srq};

use crate::event_queue::EventQueue;
use crate::shard::Shard;

/// The shared receive queues of a device.
#[derive(Debug, Default)]
pub(crate) struct Srqs(Mutex<Vec<Weak<Srq>>>);

impl Srqs {
    pub(crate) fn add(&self, srq: &Arc<Srq>) {
        let mut srqs = self.lock();
        srqs.retain(|other| other.strong_count() > 0);
        srqs.push(Arc::downgrade(srq));
    }

    fn all(&self) -> Vec<Arc<Srq>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Srq>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tables that hold the objects.
#[derive(Debug)]
pub(crate) struct Inventory {
    pub(crate) first_slot: u8,
    pub(crate) regions: Arc<Regions>,
    pub(crate) shards: Arc<[Arc<Shard>]>,
    pub(crate) event_queue: Arc<EventQueue>,
    pub(crate) srqs: Arc<Srqs>,
}

impl Inventory {
    /// Returns the list as JSON.
    pub(crate) fn report(&self, keys: bool) -> Vec<u8> {
        let text = serde_json::to_vec(&self.take(keys));
        text.unwrap_or_else(|error| {
            tracing::warn!("cannot encode the list of objects: {error}");
            Vec::new()
        })
    }

    fn take(&self, keys: bool) -> Resources {
        let mut queries: Vec<(u32, QpQuery)> = Vec::new();
        for shard in self.shards.iter() {
            shard.with(|adapter, _| {
                let all = adapter.qpns();
                queries.extend(all.filter_map(|qpn| Some((qpn, adapter.query_qp(qpn).ok()?))));
            });
        }
        let srqs = self.srqs.all();
        let mrs = self.regions.numbered_mrs();
        let mws = self.regions.mws();
        let pds = self.regions.pds().into_iter().map(|pd| {
            let users = queries.iter().filter(|(_, qp)| qp.pd == Some(pd)).count()
                + mrs.iter().filter(|(_, mr)| mr.pd().id() == pd).count()
                + mws.iter().filter(|mw| mw.pd().id() == pd).count()
                + srqs.iter().filter(|srq| srq.pd().id() == pd).count();
            let (pdn, users) = (self.number(pd), users as u32);
            PdResource { pdn, users }
        });
        let mut cqs = self.event_queue.cqs();
        cqs.sort_by_key(|cq| cq.id());
        let cqs = cqs.iter().map(|cq| {
            let ends = queries.iter().flat_map(|(_, qp)| [qp.send_cq, qp.recv_cq]);
            let xrc = srqs.iter().map(|srq| srq.xrc_cq().map(|cq| cq.id()));
            let users = ends.chain(xrc).filter(|end| *end == Some(cq.id())).count();
            CqResource {
                cqn: self.number(cq.id()),
                cqe: cq.queue().capacity(),
                users: users as u32,
            }
        });
        Resources {
            ctxn: self.number(0),
            pds: pds.collect(),
            cqs: cqs.collect(),
            qps: queries.iter().map(|(qpn, qp)| self.qp(*qpn, qp)).collect(),
            mrs: mrs
                .iter()
                .map(|(slot, mr)| MrResource {
                    mrn: self.number(*slot),
                    keys: keys.then(|| MrKeys {
                        rkey: mr.rkey(),
                        lkey: mr.lkey(),
                        iova: mr.iova(),
                    }),
                    mrlen: mr.length(),
                    pdn: self.number(mr.pd().id()),
                })
                .collect(),
            srqs: srqs
                .iter()
                .map(|srq| SrqResource {
                    srqn: self.number(srq.number()),
                    xrc: srq.xrc_cq().is_some(),
                    pdn: self.number(srq.pd().id()),
                    cqn: srq.xrc_cq().map(|cq| self.number(cq.id())),
                })
                .collect(),
        }
    }

    fn qp(&self, qpn: u32, qp: &QpQuery) -> QpResource {
        let attr = &qp.attr;
        let connected = !qp.qp_type.is_datagram();
        let knows_peer = connected && !matches!(attr.state, QpState::Reset | QpState::Init);
        QpResource {
            lqpn: qpn,
            pdn: qp.pd.map(|pd| self.number(pd)),
            rqpn: knows_peer.then_some(attr.dest_qpn),
            kind: kind(qp.qp_type).into(),
            state: state(attr.state).into(),
            rq_psn: connected.then(|| attr.rq_psn.value()),
            sq_psn: attr.sq_psn.value(),
            srqn: qp.srq.map(|srq| self.number(srq)),
            sends: qp.sends as u32,
            receives: qp.receives as u32,
        }
    }

    /// Returns an object's number, unique among all programs.
    fn number(&self, own: u32) -> u32 {
        u32::from(self.first_slot) << 20 | own & 0xf_ffff
    }
}

fn kind(kind: QpType) -> &'static str {
    match kind {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::Gsi => "GSI",
        QpType::XrcInitiator => "XRC_INI",
        QpType::XrcTarget => "XRC_TGT",
    }
}

fn state(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}
