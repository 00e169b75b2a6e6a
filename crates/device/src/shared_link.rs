//! A link that a process has opened, with its slots. All devices on the link share it.
//!
//! Each `ibv_open_device` creates a [`Device`](crate::Device), with its own objects and events.
//! The first queue pair attaches the process to the link: it takes slots, which all devices on
//! the link use. Their queue pairs are in the same shards. The last close gives the slots back.
//!
//! Before the first queue pair the process has no slot and no thread (see
//! [`LinkWatch`](crate::link_watch)).

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use ferroce_control::client::OpenLink;
use ferroce_control::path::netns_inode;
use ferroce_control::{Client, LinkInfo, PerProcess, ResumeDescriptors, generation};
use ferroce_net::local::HostWire;
use ferroce_net::{Receiver, Sender, SlotSockets, UdpWire};
use ferroce_roce::{Regions, VerbsError};
use ferroce_shard::STANDBY_NS;

use crate::busy_shards::{BusyShards, Load};
use crate::clock;
use crate::core::{Core, RoceCore};
use crate::counters;
use crate::credits::MappedCredits;
use crate::device::closed;
use crate::directory::Directory;
use crate::error::Error;
use crate::event_queue::EventQueue;
use crate::faults;
use crate::fork::{self, NotForChildren};
use crate::link_watch::{LinkWatch, check_netns, gone};
use crate::local::LocalWire;
use crate::progress;
use crate::resources::Inventory;
use crate::shard::Shard;
use crate::shard_setup::{new_engine, seed, wanted_shards};
use crate::shards::{Shards, Slot};
use crate::slowness::scaled;
use crate::streams::StreamCore;
use crate::supervisor::Supervisor;

/// An open link of this process.
#[derive(Debug)]
pub(crate) struct SharedLink {
    /// Network namespace of the link.
    netns: u64,
    pub(crate) regions: Arc<Regions>,
    pub(crate) shards: Arc<Shards>,
    pub(crate) directory: Arc<Directory>,
    /// The wires between programs of this host.
    pub(crate) local: LocalWire,
    supervisor: Arc<Supervisor>,
    watch: LinkWatch,
    /// Options of the engines, once they exist.
    options: OnceLock<Options>,
    next_shard: AtomicUsize,
    /// Number of open devices; changed while the list of open links is locked.
    devices: AtomicUsize,
    attachment: Mutex<Attachment>,
    /// [`generation`] of the process that opened the link.
    process: u64,
}

/// The attachment of a process to a link.
#[derive(Debug)]
enum Attachment {
    /// No queue pair was created yet.
    None,
    Slots(Box<UsedSlots>),
    /// All devices are closed.
    Ended,
}

/// The slots of a link in use by this process.
#[derive(Debug)]
struct UsedSlots {
    /// The progress thread of each shard, once it has started.
    threads: Vec<Option<JoinHandle<()>>>,
    /// Sockets that a forked child closes.
    _not_for_children: NotForChildren,
    open: OpenLink,
}

/// Options of a link that its engines take over when they are created.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    crc: bool,
    patience: u32,
}

impl Options {
    fn of(link: &LinkInfo) -> Options {
        Options {
            crc: link.crc,
            patience: link.patience,
        }
    }
}

/// The open links of a process.
#[derive(Debug, Default)]
struct OpenLinks {
    links: Mutex<Vec<Arc<SharedLink>>>,
    /// Locked by the thread that opens a link: each link is opened once.
    opening: Mutex<()>,
}

static OPEN: PerProcess<OpenLinks> = PerProcess::new();

impl SharedLink {
    /// Opens a link, or returns the open one, for one more device.
    pub(crate) fn open(name: &str) -> Result<Arc<SharedLink>, Error> {
        let open = OPEN.get();
        let netns = netns_inode()?;
        if let Some(link) = find(&open.links, netns, name) {
            return link.checked();
        }
        let _opening = lock(&open.opening);
        // Another thread may have opened it meanwhile.
        if let Some(link) = find(&open.links, netns, name) {
            return link.checked();
        }
        let link = Arc::new(SharedLink::new(netns, name)?);
        lock(&open.links).push(Arc::clone(&link));
        Ok(link)
    }

    fn new(netns: u64, name: &str) -> Result<SharedLink, Error> {
        let local = LocalWire::new()?;
        let (watch, link) = LinkWatch::open(netns, name)?;
        let regions = Arc::new(Regions::new(seed()?));
        let directory = Arc::<Directory>::default();
        let shards = Arc::<Shards>::default();
        let inventory = Inventory {
            regions: Arc::clone(&regions),
            shards: Arc::clone(&shards),
            directory: Arc::clone(&directory),
        };
        Ok(SharedLink {
            netns,
            regions,
            supervisor: Arc::new(Supervisor::new(link, local.is_allowed(), inventory)),
            shards,
            directory,
            local,
            watch,
            options: OnceLock::new(),
            next_shard: AtomicUsize::new(0),
            devices: AtomicUsize::new(1),
            attachment: Mutex::new(Attachment::None),
            process: generation(),
        })
    }

    /// Returns this link for a new device, if there is a ferroced that has it. A link with
    /// slots goes on without ferroced.
    fn checked(self: Arc<SharedLink>) -> Result<Arc<SharedLink>, Error> {
        match self.watch.check(&self.supervisor) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.release();
                Err(error)
            }
        }
    }

    /// Returns the current state of the link.
    pub(crate) fn link(&self) -> Arc<LinkInfo> {
        self.receive();
        self.supervisor.link()
    }

    /// Creates the event queue of a new device.
    pub(crate) fn add_device(&self) -> std::io::Result<Arc<EventQueue>> {
        self.directory.add_device(self.watch.as_fd())
    }

    /// Receives events of the link, unless the control client's thread does so.
    pub(crate) fn receive(&self) {
        if !self.is_of_parent() {
            self.watch.receive(&self.supervisor);
        }
    }

    /// Attaches to the link, if that was not done before: takes slots, and creates their shards.
    pub(crate) fn attach(&self) -> Result<(), Error> {
        if self.shards.exist() {
            return Ok(());
        }
        let mut attachment = self.lock_attachment()?;
        self.attach_with(&mut attachment).map(drop)
    }

    /// Fails in a forked child: a thread that does not exist there may hold the lock.
    fn lock_attachment(&self) -> Result<MutexGuard<'_, Attachment>, Error> {
        if self.is_of_parent() {
            let why = "the device was opened before a fork: open it again in the child";
            return Err(Error::Verbs(VerbsError::Invalid(why.into())));
        }
        Ok(lock(&self.attachment))
    }

    fn attach_with<'a>(&self, place: &'a mut Attachment) -> Result<&'a mut UsedSlots, Error> {
        if let Attachment::None = place {
            let before = self.link();
            check_netns(self.netns)?;
            faults::check(&before)?;
            let mut open = Client::open()?.attach(&before.name, wanted_shards()?)?;
            if open.link.index != before.index {
                return Err(gone(&before.name));
            }
            let (slots, not_for_children) = open_slots(&mut open, &self.regions, &self.directory)?;
            let threads = slots.iter().map(|_| None).collect();
            let _set_once = self.options.set(Options::of(&open.link));
            self.shards.set(slots);
            // Now the control client's thread follows the link.
            self.watch.end();
            self.supervisor.catch_up(open.link.clone());
            open.set_user(Arc::clone(&self.supervisor) as _);
            *place = Attachment::Slots(Box::new(UsedSlots {
                threads,
                _not_for_children: not_for_children,
                open,
            }));
        }
        match place {
            Attachment::Slots(slots) => Ok(slots),
            Attachment::None | Attachment::Ended => Err(Error::Verbs(closed())),
        }
    }

    /// Calls `work` with the attachment; returns none without slots, or while another thread
    /// takes them or gives them back.
    pub(crate) fn with_attachment<T>(&self, work: impl FnOnce(&OpenLink) -> T) -> Option<T> {
        match &*self.attachment.try_lock().ok()? {
            Attachment::Slots(used) => Some(work(&used.open)),
            Attachment::None | Attachment::Ended => None,
        }
    }

    /// Calls `work` with the attachment, and waits for another thread that takes slots or gives
    /// them back. Returns none without slots.
    pub(crate) fn with_slots<T>(&self, work: impl FnOnce(&OpenLink) -> T) -> Option<T> {
        match &*self.lock_attachment().ok()? {
            Attachment::Slots(used) => Some(work(&used.open)),
            Attachment::None | Attachment::Ended => None,
        }
    }

    /// Chooses the shard of a new queue pair, and starts its progress thread if it does not run.
    /// Returns the shard's index.
    pub(crate) fn next_shard(&self) -> Result<usize, Error> {
        let mut attachment = self.lock_attachment()?;
        let used = self.attach_with(&mut attachment)?;
        let index = self.next_shard.fetch_add(1, Ordering::Relaxed) % used.threads.len();
        if used.threads[index].is_none() {
            let slot = &self.shards.slots()[index];
            let thread = progress::start(Arc::clone(&slot.shard), slot.number)
                .map_err(Error::system("cannot start a progress thread"))?;
            used.threads[index] = Some(thread);
        }
        Ok(index)
    }

    /// Ends the use of the link by a device: destroys its queue pairs, and frees its protection
    /// domains with their memory regions. With the last device, the slots go back to ferroced.
    pub(crate) fn end_device(self: &Arc<SharedLink>, device: &EventQueue) {
        for qpn in self.directory.qps_of(device.number()) {
            if let Some(shard) = self.shards.of_qpn(qpn) {
                self.end_qp(shard, qpn);
            }
        }
        let pds = self.directory.remove_device(device.number());
        self.regions.free_pds(&pds);
        self.pass_through();
        self.release();
    }

    /// Ends one use of the link.
    pub(crate) fn release(self: &Arc<SharedLink>) {
        let open = OPEN.get();
        let mut links = lock(&open.links);
        if self.devices.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        links.retain(|link| !Arc::ptr_eq(link, self));
        drop(links);
        self.detach();
    }

    /// Destroys a queue pair, even if it is attached to multicast groups.
    fn end_qp(&self, shard: &Shard, qpn: u32) {
        shard.with_core(|core, now, process| {
            for group in core.adapter().multicast_groups(qpn) {
                if let Ok(true) = core.adapter().detach_multicast(qpn, group)
                    && let Core::Roce(core) = core
                    && let Err(error) = core.leave_multicast(group)
                {
                    tracing::debug!("multicast group {group}: {error}");
                }
            }
            if let Err(error) = core.destroy_qp(now, process, qpn) {
                tracing::warn!("queue pair {qpn:#x} of a closed device: {error}");
            }
            self.directory.forget_qp(qpn);
        });
    }

    /// Stops all shards, and gives the slots back.
    fn detach(&self) {
        let mut attachment = lock(&self.attachment);
        for shard in self.shards.iter() {
            shard.stop();
        }
        let ended = std::mem::replace(&mut *attachment, Attachment::Ended);
        if let Attachment::Slots(mut used) = ended {
            for thread in used.threads.drain(..).flatten() {
                let _panicked = thread.join();
            }
            // No thread uses the slots any more: ferroced can have them.
            drop(used);
        }
        self.watch.end();
    }

    /// Waits until no thread accesses memory that has just been deregistered.
    pub(crate) fn pass_through(&self) {
        for shard in self.shards.iter() {
            shard.pass_through();
        }
    }

    /// Returns true in a forked child of the process that opened the link.
    pub(crate) fn is_of_parent(&self) -> bool {
        generation() != self.process
    }
}

impl Drop for SharedLink {
    fn drop(&mut self) {
        if self.is_of_parent() {
            // The handles are those of threads that the child does not have.
            let attachment = self.attachment.get_mut();
            let attachment = attachment.unwrap_or_else(PoisonError::into_inner);
            if let Attachment::Slots(used) = attachment {
                used.threads.drain(..).for_each(core::mem::forget);
            }
        }
    }
}

/// Returns the open link with this name for one more device. A link whose options have changed
/// is opened again: its engines keep their options.
fn find(links: &Mutex<Vec<Arc<SharedLink>>>, netns: u64, name: &str) -> Option<Arc<SharedLink>> {
    let links = lock(links);
    let link = links.iter().find(|open| {
        open.receive();
        let fits = |link: &LinkInfo| {
            let options = open.options.get();
            link.name == name && options.is_none_or(|options| *options == Options::of(link))
        };
        open.netns == netns && open.supervisor.is_usable(fits)
    })?;
    link.devices.fetch_add(1, Ordering::Relaxed);
    Some(Arc::clone(link))
}

/// Creates a shard for each slot of an attachment.
fn open_slots(
    open: &mut OpenLink,
    regions: &Arc<Regions>,
    directory: &Arc<Directory>,
) -> Result<(Vec<Slot>, NotForChildren), Error> {
    let busy = BusyShards::default();
    let credits = match &*open.descriptors {
        ResumeDescriptors::Udp { credits, .. } => {
            Some(MappedCredits::new(credits).map_err(Error::system("credit page"))?)
        }
        ResumeDescriptors::Streams(_) => None,
    };
    let mut not_for_children = NotForChildren::default();
    for fd in open.descriptors.fds() {
        not_for_children.add(fd);
    }
    let mut slots = Vec::new();
    for slot in std::mem::take(&mut open.slots) {
        if let Some((v4, v6)) = &slot.sockets {
            not_for_children.add(v4.as_fd());
            v6.iter().for_each(|v6| not_for_children.add(v6.as_fd()));
        }
        let counters = counters::map(&slot.counters).map_err(Error::system("counters"))?;
        let counters = Arc::new(counters);
        let load = Load::new(Arc::clone(&counters), Arc::clone(&busy), slots.len());
        let core = match slot.sockets.zip(credits.clone()) {
            None => StreamCore::new(slot.slot, regions, Arc::clone(&counters)).map(Core::Iwarp),
            Some(((v4, v6), credits)) => {
                let engine = new_engine(&open.link, slot.slot, &counters, regions)?;
                let mut receiver = Receiver::new(slot.slot, SlotSockets { v4, v6 });
                receiver.report_to(Arc::clone(&counters));
                let wire = UdpWire::new(receiver, Sender::new(), open.link.ifindex);
                HostWire::new(wire, Arc::clone(&counters), fork::counter())
                    .and_then(|wire| RoceCore::new(engine, wire, credits))
                    .map(|mut core| {
                        core.set_standby(scaled(STANDBY_NS));
                        Core::Roce(core)
                    })
            }
        };
        let shard = core
            .map(|mut core| {
                core.set_faults(clock::now(), faults::on_link(&open.link).as_ref());
                core
            })
            .and_then(|core| Shard::new(core, Arc::clone(directory), load))
            .map_err(Error::system("shard"))?;
        for socket in shard.sockets() {
            not_for_children.add(socket.as_fd());
        }
        slots.push(Slot {
            number: slot.slot,
            shard: Arc::new(shard),
            counters,
        });
    }
    Ok((slots, not_for_children))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
