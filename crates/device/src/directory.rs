//! The objects of all devices on a link, and the device of each.
//!
//! Devices that a process opens on one link share engines, whose events name an object by its
//! number. The directory finds the device of the object. Events of the port are for all devices.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use ferroce_control::LinkInfo;
use ferroce_faults::Provoked;
use ferroce_roce::{Datagram, Decision, Event, Received, Srq};

use crate::cq::Cq;
use crate::event_queue::{AsyncEvent, EventQueue};
use crate::memory::observed::{self, ShortReceive};
use crate::resources::StreamLister;
use crate::taps::Taps;

/// Number of a device among those of its link.
pub(crate) type DeviceNumber = u32;

/// An object, which may be destroyed, and its device.
type Owned<T> = (Weak<T>, Arc<EventQueue>);

/// All objects on a link. No lock is held while another one of it is taken.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    pub(crate) taps: Taps,
    /// Lists the connections of a link of type siw.
    pub(crate) streams: OnceLock<StreamLister>,
    devices: Mutex<Vec<Arc<EventQueue>>>,
    pds: Mutex<HashMap<u32, DeviceNumber>>,
    cqs: Mutex<HashMap<u32, Owned<Cq>>>,
    qps: Mutex<HashMap<u32, Arc<EventQueue>>>,
    /// Reasons of the queue pairs that have failed.
    failures: Mutex<HashMap<u32, String>>,
    srqs: Mutex<HashMap<u32, Owned<Srq>>>,
    /// True while a fault keeps the port down.
    is_port_down: AtomicBool,
    /// True while a fault hides the GIDs.
    has_no_gids: AtomicBool,
    next_device: AtomicU32,
    next_cq: AtomicU32,
    next_srq: AtomicU32,
}

impl Directory {
    /// Adds a device, and returns its event queue. `link` is readable when a message about the
    /// link has arrived.
    pub(crate) fn add_device(&self, link: BorrowedFd<'_>) -> std::io::Result<Arc<EventQueue>> {
        let number = self.next_device.fetch_add(1, Ordering::Relaxed);
        let device = Arc::new(EventQueue::new(number, link)?);
        lock(&self.devices).push(Arc::clone(&device));
        Ok(device)
    }

    /// Removes a device and its objects. Returns the numbers of its protection domains.
    pub(crate) fn remove_device(&self, number: DeviceNumber) -> BTreeSet<u32> {
        let is_other = |device: &Arc<EventQueue>| device.number() != number;
        lock(&self.devices).retain(is_other);
        lock(&self.cqs).retain(|_, (_, device)| is_other(device));
        lock(&self.qps).retain(|_, device| is_other(device));
        lock(&self.srqs).retain(|_, (_, device)| is_other(device));
        let mut pds = lock(&self.pds);
        let removed = pds.extract_if(|_, device| *device == number);
        removed.map(|(pd, _)| pd).collect()
    }

    /// Returns the numbers of all devices.
    pub(crate) fn devices(&self) -> Vec<DeviceNumber> {
        let devices = lock(&self.devices);
        devices.iter().map(|device| device.number()).collect()
    }

    pub(crate) fn add_pd(&self, pd: u32, device: &EventQueue) {
        lock(&self.pds).insert(pd, device.number());
    }

    pub(crate) fn forget_pd(&self, pd: u32) {
        lock(&self.pds).remove(&pd);
    }

    /// Returns the device of a protection domain.
    pub(crate) fn device_of_pd(&self, pd: u32) -> Option<DeviceNumber> {
        lock(&self.pds).get(&pd).copied()
    }

    /// Returns the number of a new completion queue.
    pub(crate) fn new_cq(&self) -> u32 {
        self.next_cq.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn add_cq(&self, cq: &Arc<Cq>, device: &Arc<EventQueue>) {
        let entry = (Arc::downgrade(cq), Arc::clone(device));
        lock(&self.cqs).insert(cq.id(), entry);
    }

    pub(crate) fn forget_cq(&self, cq: u32) {
        lock(&self.cqs).remove(&cq);
    }

    /// Returns the device of a completion queue; none if the queue is destroyed or is of another
    /// link.
    pub(crate) fn device_of_cq(&self, cq: &Cq) -> Option<DeviceNumber> {
        let cqs = lock(&self.cqs);
        let (known, device) = cqs.get(&cq.id())?;
        core::ptr::eq(known.as_ptr(), cq).then(|| device.number())
    }

    /// Returns all completion queues, with their devices.
    pub(crate) fn cqs(&self) -> Vec<(Arc<Cq>, DeviceNumber)> {
        let cqs = lock(&self.cqs);
        let live = cqs.values().filter_map(|(cq, device)| {
            let cq = cq.upgrade()?;
            Some((cq, device.number()))
        });
        live.collect()
    }

    /// Returns the number of a new shared receive queue.
    pub(crate) fn new_srq(&self) -> u32 {
        (self.next_srq.fetch_add(1, Ordering::Relaxed) + 1) & 0xff_ffff
    }

    pub(crate) fn add_srq(&self, srq: &Arc<Srq>, device: &Arc<EventQueue>) {
        let mut srqs = lock(&self.srqs);
        srqs.retain(|_, (other, _)| other.strong_count() > 0);
        srqs.insert(srq.number(), (Arc::downgrade(srq), Arc::clone(device)));
    }

    /// Returns all shared receive queues.
    pub(crate) fn srqs(&self) -> Vec<Arc<Srq>> {
        let srqs = lock(&self.srqs);
        srqs.values().filter_map(|(srq, _)| srq.upgrade()).collect()
    }

    /// Adds a queue pair. The caller holds the lock of its shard: no event comes before.
    pub(crate) fn add_qp(&self, qpn: u32, device: &Arc<EventQueue>) {
        lock(&self.qps).insert(qpn, Arc::clone(device));
    }

    /// Forgets a queue pair. The caller holds the lock of its shard: no other queue pair has
    /// got the number yet.
    pub(crate) fn forget_qp(&self, qpn: u32) {
        lock(&self.qps).remove(&qpn);
        lock(&self.failures).remove(&qpn);
        self.taps.forget_qp(qpn);
    }

    /// Returns the reason of a queue pair's last failure.
    pub(crate) fn failure_of(&self, qpn: u32) -> Option<String> {
        lock(&self.failures).get(&qpn).cloned()
    }

    /// Returns the device of a queue pair.
    pub(crate) fn device_of_qp(&self, qpn: u32) -> Option<DeviceNumber> {
        lock(&self.qps).get(&qpn).map(|device| device.number())
    }

    /// Returns true if the process has this queue pair on the link.
    #[cold]
    pub(crate) fn has_qp(&self, qpn: u32) -> bool {
        lock(&self.qps).contains_key(&qpn)
    }

    /// Writes a received packet, with the decisions about it and what a fault did to it, to
    /// captures and the journal. Without a result the fault has lost it.
    #[cold]
    pub(crate) fn tap_received(
        &self,
        datagram: &Datagram<'_>,
        result: Option<Received>,
        decisions: &[(u32, Decision)],
        fate: &str,
    ) {
        let qpn = datagram.payload.get(5..8);
        let qpn = qpn.map_or(0, |b| u32::from_be_bytes([0, b[0], b[1], b[2]]));
        let exists = self.has_qp(qpn);
        for (qpn, decision) in decisions {
            if let Decision::ShortReceive { room, needed } = *decision {
                let qpn = *qpn;
                observed::note_short_receive(ShortReceive { qpn, room, needed });
            }
        }
        self.taps
            .received(datagram, result, decisions, fate, exists);
    }

    /// Returns the queue pairs of a device.
    pub(crate) fn qps_of(&self, number: DeviceNumber) -> Vec<u32> {
        let qps = lock(&self.qps);
        let own = qps.iter().filter(|(_, device)| device.number() == number);
        own.map(|(qpn, _)| *qpn).collect()
    }

    /// Passes an engine's event to its reader.
    pub(crate) fn report(&self, event: Event) {
        match event {
            Event::CqNotify { cq } => {
                let cq = lock(&self.cqs).get(&cq).and_then(|(cq, _)| cq.upgrade());
                if let Some(cq) = cq {
                    cq.notify();
                }
            }
            Event::CqError { cq } => {
                let why = format_args!("cq {cq}: a completion was lost because the queue was full");
                tracing::warn!("{why}");
                self.taps.event(format_args!("IBV_EVENT_CQ_ERR: {why}"));
                let device = lock(&self.cqs).get(&cq).map(|(_, device)| device.clone());
                post(device, AsyncEvent::CqError { cq });
            }
            Event::SrqLimitReached { srq } => {
                self.taps.event(format_args!(
                    "IBV_EVENT_SRQ_LIMIT_REACHED: srq {srq} has fewer receives than its limit"
                ));
                let device = lock(&self.srqs).get(&srq).map(|(_, device)| device.clone());
                post(device, AsyncEvent::SrqLimitReached { srq });
            }
            Event::Qp { qpn, kind } => {
                let device = lock(&self.qps).get(&qpn).cloned();
                post(device, AsyncEvent::Qp { qpn, kind });
            }
            Event::Failure(failure) => {
                tracing::warn!("{failure} (vendor_err {:#04x})", failure.reason.code());
                self.taps.failed(&failure);
                let text = format!("{}: {}", failure.status, failure.reason);
                lock(&self.failures).insert(failure.qpn, text);
                let device = lock(&self.qps).get(&failure.qpn).cloned();
                if let Some(device) = device {
                    device.set_failure(failure);
                }
            }
        }
    }

    /// Carries out an event that faults have caused.
    pub(crate) fn provoked(&self, event: Provoked) {
        match event {
            Provoked::Port { up } => {
                self.is_port_down.store(!up, Ordering::Relaxed);
                let event = match up {
                    true => AsyncEvent::PortActive,
                    false => AsyncEvent::PortError,
                };
                self.post_to_all(&event, "by a fault");
            }
            Provoked::Gids { present } => {
                self.has_no_gids.store(!present, Ordering::Relaxed);
                self.post_to_all(&AsyncEvent::GidChange, "by a fault");
            }
            Provoked::SrqLimit => {
                for srq in self.srqs() {
                    let srq = srq.number();
                    self.report(Event::SrqLimitReached { srq });
                }
            }
            Provoked::DeviceFatal => self.post_to_all(&AsyncEvent::DeviceFatal, "by a fault"),
            // The shard has failed the queue pair.
            Provoked::QpError(_) | Provoked::CqOverrun(_) => {}
        }
    }

    /// Returns the state of the link as the faults in force show it.
    pub(crate) fn as_provoked(&self, link: &Arc<LinkInfo>) -> Arc<LinkInfo> {
        let mut link = Arc::clone(link);
        if self.is_port_down.load(Ordering::Relaxed) {
            Arc::make_mut(&mut link).carrier = false;
        }
        if self.has_no_gids.load(Ordering::Relaxed) {
            Arc::make_mut(&mut link).gids.clear();
        }
        link
    }

    /// Adds an event of the port to the queues of all devices, and its cause to the journal.
    pub(crate) fn post_to_all(&self, event: &AsyncEvent, cause: &str) {
        let text = match event {
            AsyncEvent::PortActive => "IBV_EVENT_PORT_ACTIVE: the port is up",
            AsyncEvent::PortError => "IBV_EVENT_PORT_ERR: the port is down",
            AsyncEvent::GidChange => "IBV_EVENT_GID_CHANGE: the GID table has changed",
            AsyncEvent::DeviceFatal => "IBV_EVENT_DEVICE_FATAL: the device has failed",
            _ => "an event of an object",
        };
        tracing::warn!("{text}, {cause}");
        self.taps.event(format_args!("{text}, {cause}"));
        let devices = lock(&self.devices).clone();
        for device in devices {
            device.post(event.clone());
        }
    }
}

/// Adds an event to the queue of a device. An object without a device is destroyed.
fn post(device: Option<Arc<EventQueue>>, event: AsyncEvent) {
    if let Some(device) = device {
        device.post(event);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code panics while it holds a list")
}
