//! A device: a link that a program has opened.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::thread::JoinHandle;

use ferroce_control::client::OpenLink;
use ferroce_control::{Client, LinkInfo};
use ferroce_net::{Receiver, Sender, SlotSockets, UdpWire};
use ferroce_roce::{
    Access, AccessError, AddressHandle, Counter, Counters, MemRef, Mr, Mw, MwKind, Pd, QpInit,
    Regions, Rereg, Srq, SrqInit, VerbsError, Xrcd,
};
use ferroce_wire::Mtu;
use rustix::process::{Pid, getpid};

use crate::address::AhAttr;
use crate::busy_shards::{BusyShards, Load};
use crate::channel::Channel;
use crate::completion_channel::CompletionChannel;
use crate::counters;
use crate::cq::Cq;
use crate::credits::MappedCredits;
use crate::error::Error;
use crate::event_queue::{AsyncEvent, EventQueue};
use crate::fork::NotForChildren;
use crate::progress;
use crate::qp::Qp;
use crate::resources::{Inventory, Srqs};
use crate::shard::{Core, Shard};
use crate::shard_setup::{new_engine, seed, wanted_shards};
use crate::supervisor::Supervisor;

/// An open device.
///
/// ```no_run
/// use ferroce_device::{Device, list_links};
///
/// for link in list_links()? {
///     let device = Device::open(&link.name)?;
///     println!("{}: active MTU {}", link.name, device.link().active_mtu);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Device {
    link: Arc<RwLock<LinkInfo>>,
    regions: Arc<Regions>,
    shards: Arc<[Arc<Shard>]>,
    /// Slot of each shard.
    slots: Vec<u8>,
    /// Counters of each shard.
    counters: Vec<Arc<Counters>>,
    event_queue: Arc<EventQueue>,
    srqs: Arc<Srqs>,
    next_cq: AtomicU32,
    next_srq: AtomicU32,
    next_shard: AtomicUsize,
    /// The attachment to the link, until the device is closed.
    attachment: Mutex<Option<OpenLink>>,
    threads: Mutex<Threads>,
    /// The process that started the threads.
    process: Pid,
    /// Sockets that a forked child closes, until the device is dropped.
    _not_for_children: NotForChildren,
}

/// The progress threads of a device.
#[derive(Debug)]
struct Threads {
    /// For each shard, whether its thread was started.
    started: Vec<bool>,
    handles: Vec<JoinHandle<()>>,
}

impl Device {
    /// Opens a link by its name. `FERROCE_SHARDS` sets the number of shards. By default there
    /// is one for each four processors, up to four.
    pub fn open(link: &str) -> Result<Arc<Device>, Error> {
        let mut attachment = Client::open()?.attach(link, wanted_shards())?;
        let busy = BusyShards::default();
        let event_queue = Arc::new(EventQueue::new().map_err(Error::system("event channel"))?);
        let regions = Arc::new(Regions::new(seed()?));
        let credits =
            MappedCredits::new(&attachment.kept.credits).map_err(Error::system("credit page"))?;
        let mut opened = Vec::new();
        let mut numbers = Vec::new();
        let mut all_counters = Vec::new();
        let mut not_for_children = NotForChildren::default();
        for fd in attachment.kept.escrow.fds() {
            not_for_children.add(fd);
        }
        for slot in std::mem::take(&mut attachment.slots) {
            numbers.push(slot.slot);
            not_for_children.add(slot.sockets.0.as_fd());
            if let Some(v6) = &slot.sockets.1 {
                not_for_children.add(v6.as_fd());
            }
            let counters = counters::map(&slot.counters).map_err(Error::system("counters"))?;
            let counters = Arc::new(counters);
            let load = Load::new(Arc::clone(&counters), Arc::clone(&busy), opened.len());
            all_counters.push(Arc::clone(&counters));
            let engine = new_engine(&attachment.link, slot.slot, &counters, &regions)?;
            let (v4, v6) = slot.sockets;
            let mut receiver = Receiver::new(slot.slot, SlotSockets { v4, v6 });
            receiver.report_to(counters);
            let wire = UdpWire::new(receiver, Sender::new(), attachment.link.ifindex);
            let shard = Core::new(engine, wire, credits.clone())
                .and_then(|core| Shard::new(core, Arc::clone(&event_queue), load))
                .map_err(Error::system("shard"))?;
            for socket in shard.sockets() {
                not_for_children.add(socket.as_fd());
            }
            opened.push(Arc::new(shard));
        }
        let shards: Arc<[Arc<Shard>]> = opened.into();
        let link = Arc::new(RwLock::new(attachment.link.clone()));
        let srqs = Arc::<Srqs>::default();
        let inventory = Inventory {
            first_slot: numbers.first().copied().unwrap_or(0),
            regions: Arc::clone(&regions),
            shards: Arc::clone(&shards),
            event_queue: Arc::clone(&event_queue),
            srqs: Arc::clone(&srqs),
        };
        attachment.set_user(Arc::new(Supervisor {
            link: Arc::clone(&link),
            event_queue: Arc::clone(&event_queue),
            shards: Arc::clone(&shards),
            inventory,
        }));
        let device = Device {
            link,
            regions,
            shards,
            counters: all_counters,
            event_queue,
            srqs,
            next_cq: AtomicU32::new(1),
            next_srq: AtomicU32::new(1),
            next_shard: AtomicUsize::new(0),
            attachment: Mutex::new(Some(attachment)),
            threads: Mutex::new(Threads {
                started: vec![false; numbers.len()],
                handles: Vec::new(),
            }),
            slots: numbers,
            process: getpid(),
            _not_for_children: not_for_children,
        };
        // A progress thread starts last. The others start with the first queue pair of their
        // shard.
        device
            .start_thread(0)
            .map_err(Error::system("progress thread"))?;
        Ok(Arc::new(device))
    }

    /// Returns the current state of the link.
    pub fn link(&self) -> LinkInfo {
        self.link
            .read()
            .expect("no code panics while it holds the link")
            .clone()
    }

    /// Returns the channel whose descriptor is readable while an asynchronous event waits.
    pub fn events(&self) -> &Channel {
        self.event_queue.channel()
    }

    /// Takes the oldest asynchronous event; waits for one unless the channel is
    /// non-blocking.
    pub fn take_event(&self) -> std::io::Result<AsyncEvent> {
        self.event_queue.take()
    }

    /// Returns the cause of the last failed work request.
    pub fn last_failure(&self) -> Option<String> {
        self.event_queue
            .last_failure()
            .map(|failure| failure.to_string())
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Arc<Pd> {
        self.regions.alloc_pd()
    }

    /// Frees a protection domain that nothing uses.
    pub fn dealloc_pd(&self, pd: Arc<Pd>) -> Result<(), VerbsError> {
        self.regions.dealloc_pd(pd).map_err(|(_, error)| error)
    }

    /// Registers memory of the program. [`Buffer`](crate::Buffer) is the safe alternative: it
    /// owns its memory.
    ///
    /// # Safety
    ///
    /// Until [`Device::deregister`] has returned for this region, or the device is closed:
    ///
    /// - The memory from `addr` to `addr + length` is used for nothing else. In particular it
    ///   is not given back to an allocator. It may be unmapped: a work request that accesses
    ///   it then fails.
    /// - No Rust reference to the memory exists while the device may write to it, that is
    ///   while a receive, READ or atomic that names it is posted, or, with a remote access
    ///   flag, at any time. The program accesses it by raw pointers or atomics.
    /// - Without [`Access::LOCAL_WRITE`] the device only reads, so shared references are
    ///   permitted; `&mut` is not.
    ///
    /// Safe code cannot name memory that it does not own:
    ///
    /// ```compile_fail,E0133
    /// # use {ferroce_device::{Device, transport::{Access, Pd}}, std::sync::Arc};
    /// fn register(device: &Device, pd: &Arc<Pd>, addr: u64) {
    ///     let _mr = device.register(pd, addr, 4096, addr, Access::LOCAL_WRITE);
    /// }
    /// ```
    pub unsafe fn register(
        &self,
        pd: &Arc<Pd>,
        addr: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, VerbsError> {
        self.regions
            .register(pd, MemRef::host(addr), length, iova, access)
    }

    /// Registers a null region: reads return zeros, and written data is discarded.
    pub fn register_null(&self, pd: &Arc<Pd>) -> Result<Arc<Mr>, VerbsError> {
        self.regions.register_null(pd)
    }

    /// Frees a window. After the return no packet accesses memory through it.
    pub fn dealloc_mw(&self, mw: &Arc<Mw>) -> Result<(), VerbsError> {
        self.regions.dealloc_mw(mw)?;
        self.pass_through();
        Ok(())
    }

    /// Allocates a memory window.
    pub fn alloc_mw(&self, pd: &Arc<Pd>, kind: MwKind) -> Result<Arc<Mw>, VerbsError> {
        self.regions.alloc_mw(pd, kind)
    }

    /// Returns the rkey for the next bind of a type 1 window.
    pub fn next_type1_rkey(&self, mw: &Mw) -> u32 {
        self.regions.next_type1_rkey(mw)
    }

    /// Checks whether work requests of a protection domain may use a range of a region for
    /// `need`. Returns the memory behind `addr`.
    pub fn check_lkey(
        &self,
        lkey: u32,
        pd: &Pd,
        need: Access,
        addr: u64,
        length: u32,
    ) -> Result<MemRef, AccessError> {
        self.regions.local(lkey, pd, need, addr, length)
    }

    /// Changes a registration. After the return no thread of the device accesses memory that
    /// left the region.
    ///
    /// # Safety
    ///
    /// The contract of [`Device::register`] holds for the region as changed.
    pub unsafe fn reregister(&self, mr: &Arc<Mr>, change: &Rereg) -> Result<(), VerbsError> {
        self.regions.reregister(mr, change)?;
        self.pass_through();
        Ok(())
    }

    /// Deregisters memory. After the return no thread of the device accesses it.
    pub fn deregister(&self, mr: &Arc<Mr>) -> Result<(), VerbsError> {
        self.regions.deregister(mr)?;
        self.pass_through();
        Ok(())
    }

    /// Creates a completion channel.
    pub fn create_channel(&self) -> Result<Arc<CompletionChannel>, Error> {
        let channel = CompletionChannel::new(Arc::clone(&self.shards))
            .map_err(Error::system("completion channel"))?;
        Ok(Arc::new(channel))
    }

    /// Creates a completion queue.
    pub fn create_cq(
        &self,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> Result<Arc<Cq>, VerbsError> {
        let id = self.next_cq.fetch_add(1, Ordering::Relaxed);
        let cq = Arc::new(Cq::new(id, entries, channel, Arc::clone(&self.shards))?);
        self.event_queue.register(&cq);
        Ok(cq)
    }

    /// Destroys a completion queue that no queue pair uses. Its unread records leave the
    /// channel.
    pub fn destroy_cq(&self, cq: &Arc<Cq>) -> Result<(), VerbsError> {
        if Arc::strong_count(cq.queue()) > 1 {
            return Err(VerbsError::Busy(
                "queue pairs or shared receive queues complete here".into(),
            ));
        }
        self.event_queue.forget(cq.id());
        cq.purge();
        cq.queue().close();
        Ok(())
    }

    /// Creates a shared receive queue.
    pub fn create_srq(&self, pd: &Arc<Pd>, init: SrqInit) -> Result<Arc<Srq>, VerbsError> {
        let number = self.next_srq.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        let srq = Srq::new(number, Arc::clone(pd), init)?;
        self.srqs.add(&srq);
        Ok(srq)
    }

    /// Creates a shared receive queue for XRC, whose receives complete in `cq`. XRC targets
    /// of every shard can use them.
    pub fn create_xrc_srq(
        &self,
        pd: &Arc<Pd>,
        (max_wr, max_sge): (u32, u32),
        xrcd: &Arc<Xrcd>,
        cq: &Arc<Cq>,
    ) -> Result<Arc<Srq>, VerbsError> {
        let init = SrqInit {
            max_wr,
            max_sge,
            xrc: Some((Arc::clone(xrcd), Arc::clone(cq.queue()))),
        };
        let srq = self.create_srq(pd, init)?;
        for shard in 0..self.shards.len() {
            cq.serve(shard);
        }
        Ok(srq)
    }

    /// Creates a queue pair that completes in these queues.
    pub fn create_qp(
        self: &Arc<Device>,
        init: &QpInit,
        completes_in: &[&Arc<Cq>],
    ) -> Result<Qp, VerbsError> {
        let index = self.next_shard.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        let shard = &self.shards[index];
        self.start_thread(index).map_err(|error| {
            VerbsError::NoMemory(format!("cannot start a progress thread: {error}"))
        })?;
        for cq in completes_in {
            cq.serve(index);
        }
        let (qpn, cap) = shard.with_core(|core, _, _| {
            if init.qp_type.is_datagram() {
                core.expect_datagrams();
            }
            core.adapter().create_qp(init)
        })?;
        let (device, shard) = (Arc::clone(self), Arc::clone(shard));
        Ok(Qp::new(device, shard, qpn, cap, init.qp_type))
    }

    /// Creates an address handle.
    pub fn create_ah(&self, pd: &Arc<Pd>, attr: &AhAttr) -> Result<Arc<AddressHandle>, VerbsError> {
        let av = attr.resolve(&self.link())?;
        Ok(AddressHandle::new(Arc::clone(pd), av))
    }

    /// Sends deferred ACKs and posts that wait for more of them. Call it before the process
    /// ends.
    pub fn flush_deferred(&self) {
        for shard in self.shards.iter() {
            shard.flush_deferred();
        }
    }

    /// Returns true if the device has sent or received a packet.
    pub fn has_traffic(&self) -> bool {
        let packets = [Counter::SentPkts, Counter::RcvdPkts];
        let mut counters = self.counters.iter();
        counters.any(|counters| packets.iter().any(|&packet| counters.get(packet) > 0))
    }

    /// Closes the device, even if objects are left: its queue pairs send and receive
    /// nothing from now on, and ferroced gets the slots back. Remaining objects can only be
    /// dropped.
    pub fn close(&self) {
        if self.is_of_parent() {
            // A forked child has no threads, and must not end those of its parent. A thread
            // that does not exist in the child may hold the locks.
            return;
        }
        let mut attachment = self
            .attachment
            .lock()
            .expect("no code panics while it holds the attachment");
        for shard in self.shards.iter() {
            shard.stop();
        }
        for thread in self.threads().handles.drain(..) {
            let _panicked = thread.join();
        }
        // No thread uses the slots any more: ferroced can have them.
        drop(attachment.take());
    }

    fn is_of_parent(&self) -> bool {
        getpid() != self.process
    }

    fn pass_through(&self) {
        for shard in self.shards.iter() {
            shard.pass_through();
        }
    }

    /// Starts the progress thread of a shard, if it does not run.
    fn start_thread(&self, index: usize) -> std::io::Result<()> {
        let mut threads = self.threads();
        if !threads.started[index] {
            let shard = Arc::clone(&self.shards[index]);
            let handle = progress::start(shard, self.slots[index])?;
            threads.handles.push(handle);
            threads.started[index] = true;
        }
        Ok(())
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads
            .lock()
            .expect("no code panics while it holds the list of threads")
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_of_parent() {
            // The handles are those of threads that the child does not have.
            let threads = self.threads.get_mut();
            std::mem::forget(threads.map(|threads| std::mem::take(&mut threads.handles)));
            return;
        }
        self.close();
    }
}

/// Returns the active MTU of a link's port.
pub(crate) fn port_mtu(link: &LinkInfo) -> Mtu {
    Mtu::from_bytes(link.active_mtu as usize).unwrap_or(Mtu::Mtu256)
}
