//! The lists of a program's objects on the devices of a link, for `rdma resource`.
//!
//! The control client's thread collects the lists when a client asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferroce_control::resources::{
    CqResource, MrKeys, MrResource, PdResource, QpActivity, QpResource, Resources, SrqResource,
    StreamResource,
};
use ferroce_roce::{Mr, Mw, QpQuery, QpState, QpType, Regions, Srq};

use crate::cq::Cq;
use crate::device::Device;
use crate::directory::{DeviceNumber, Directory};
use crate::shards::Shards;

/// The tables that hold the objects.
#[derive(Debug)]
pub(crate) struct Inventory {
    pub(crate) regions: Arc<Regions>,
    pub(crate) shards: Arc<Shards>,
    pub(crate) directory: Arc<Directory>,
}

/// A function that lists the connections of a link of type siw.
pub(crate) struct StreamLister(pub(crate) Box<dyn Fn() -> Vec<StreamResource> + Send + Sync>);

impl core::fmt::Debug for StreamLister {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("StreamLister")
    }
}

impl Device {
    /// Sets the function that lists the connections of the link, which is of type siw, for
    /// `rdma resource`. The first one stays.
    pub fn list_streams_by(&self, list: impl Fn() -> Vec<StreamResource> + Send + Sync + 'static) {
        let list = StreamLister(Box::new(list));
        let _first = self.shared.directory.streams.set(list);
    }
}

/// The objects of all devices of a link, or of one of them.
#[derive(Debug, Default)]
struct Objects {
    pds: Vec<u32>,
    cqs: Vec<Arc<Cq>>,
    /// Number, attributes and wire of each queue pair.
    qps: Vec<(u32, QpQuery, &'static str)>,
    mrs: Vec<(u32, Arc<Mr>)>,
    mws: Vec<Arc<Mw>>,
    srqs: Vec<Arc<Srq>>,
}

impl Inventory {
    /// Returns the list as JSON.
    pub(crate) fn report(&self, keys: bool) -> Vec<u8> {
        let devices = self.take();
        let devices = devices.iter().map(|(number, objects)| {
            let mut resources = self.describe(objects, keys);
            resources.ctxn = self.number(*number);
            resources
        });
        let mut devices: Vec<Resources> = devices.collect();
        if let (Some(first), Some(lister)) = (devices.first_mut(), self.directory.streams.get()) {
            first.streams = (lister.0)();
            for stream in &mut first.streams {
                stream.cm_idn = self.number(stream.cm_idn);
            }
        }
        let text = serde_json::to_vec(&devices);
        text.unwrap_or_else(|error| {
            tracing::warn!("cannot encode the list of objects: {error}");
            Vec::new()
        })
    }

    /// Returns the objects of each device.
    fn take(&self) -> BTreeMap<DeviceNumber, Objects> {
        let directory = &self.directory;
        let mut all = BTreeMap::new();
        for device in directory.devices() {
            all.insert(device, Objects::default());
        }
        let mut put = |device: Option<DeviceNumber>, add: &mut dyn FnMut(&mut Objects)| {
            // An object that is destroyed meanwhile has no device.
            if let Some(objects) = device.and_then(|device| all.get_mut(&device)) {
                add(objects);
            }
        };
        for shard in self.shards.iter() {
            let queries: Vec<(u32, QpQuery, &'static str)> = shard.with_core(|core, _, _| {
                let qpns = core.adapter().qpns();
                let query = |qpn| {
                    let query = core.adapter().query_qp(qpn).ok()?;
                    Some((qpn, query, core.wire_of(qpn)))
                };
                qpns.into_iter().filter_map(query).collect()
            });
            for query in queries {
                let device = directory.device_of_qp(query.0);
                let mut query = Some(query);
                put(device, &mut |objects| objects.qps.extend(query.take()));
            }
        }
        for pd in self.regions.pds() {
            put(directory.device_of_pd(pd), &mut |o| o.pds.push(pd));
        }
        for (cq, device) in directory.cqs() {
            put(Some(device), &mut |o| o.cqs.push(Arc::clone(&cq)));
        }
        for (slot, mr) in self.regions.numbered_mrs() {
            let device = directory.device_of_pd(mr.pd().id());
            put(device, &mut |o| o.mrs.push((slot, Arc::clone(&mr))));
        }
        for mw in self.regions.mws() {
            let device = directory.device_of_pd(mw.pd().id());
            put(device, &mut |o| o.mws.push(Arc::clone(&mw)));
        }
        for srq in directory.srqs() {
            let device = directory.device_of_pd(srq.pd().id());
            put(device, &mut |o| o.srqs.push(Arc::clone(&srq)));
        }
        all
    }

    /// Returns the description of one device's objects.
    fn describe(&self, objects: &Objects, keys: bool) -> Resources {
        let Objects {
            pds,
            cqs,
            qps,
            mrs,
            mws,
            srqs,
        } = objects;
        let pds = pds.iter().map(|&pd| {
            let users = qps.iter().filter(|(_, qp, _)| qp.pd == Some(pd)).count()
                + mrs.iter().filter(|(_, mr)| mr.pd().id() == pd).count()
                + mws.iter().filter(|mw| mw.pd().id() == pd).count()
                + srqs.iter().filter(|srq| srq.pd().id() == pd).count();
            let (pdn, users) = (self.number(pd), users as u32);
            PdResource { pdn, users }
        });
        let mut cqs: Vec<&Arc<Cq>> = cqs.iter().collect();
        cqs.sort_by_key(|cq| cq.id());
        let cqs = cqs.iter().map(|cq| {
            let ends = qps.iter().flat_map(|(_, qp, _)| [qp.send_cq, qp.recv_cq]);
            let xrc = srqs.iter().map(|srq| srq.xrc_cq().map(|cq| cq.id()));
            let users = ends.chain(xrc).filter(|end| *end == Some(cq.id())).count();
            CqResource {
                cqn: self.number(cq.id()),
                cqe: cq.queue().capacity(),
                users: users as u32,
            }
        });
        let mut srqs: Vec<&Arc<Srq>> = srqs.iter().collect();
        srqs.sort_by_key(|srq| srq.number());
        Resources {
            ctxn: 0,
            pds: pds.collect(),
            cqs: cqs.collect(),
            qps: qps
                .iter()
                .map(|(qpn, qp, wire)| self.qp(*qpn, qp, wire))
                .collect(),
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
            streams: Vec::new(),
        }
    }

    fn qp(&self, qpn: u32, qp: &QpQuery, wire: &str) -> QpResource {
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
            failure: self.directory.failure_of(qpn),
            sends: qp.sends as u32,
            receives: qp.receives as u32,
            activity: QpActivity {
                window: qp.window,
                in_flight: qp.in_flight,
                rtt_ns: qp.round_trip_ns,
                una: qp.una.value(),
                unacked: qp.unacked,
                retries: qp.retry_counts.retries,
                rnr_rcvd: qp.retry_counts.rnr_received,
                rnr_sent: qp.retry_counts.rnr_sent,
            },
            wire: (knows_peer || qp.qp_type == QpType::Ud).then(|| wire.into()),
        }
    }

    /// Returns an object's number, unique among all programs.
    fn number(&self, own: u32) -> u32 {
        let first = self.shards.slots().first().map_or(0, |slot| slot.number);
        u32::from(first) << 20 | own & 0xf_ffff
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
