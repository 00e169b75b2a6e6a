//! A device: a link that a program has opened.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ferroce_control::LinkInfo;
use ferroce_roce::{
    Access, AccessError, AddressHandle, AddressVector, MemRef, Mr, Mw, MwKind, Pd, QpInit, Rereg,
    Srq, SrqInit, VerbsError, Xrcd,
};
use ferroce_wire::Mtu;

use crate::address::AhAttr;
use crate::completion_channel::CompletionChannel;
use crate::cq::Cq;
use crate::error::Error;
use crate::event_queue::{AsyncEvent, EventQueue};
use crate::gpu;
use crate::qp::Qp;
use crate::shard::Shard;
use crate::shared_link::SharedLink;
use crate::streams::StreamSetup;

/// An open device. Devices that a process opens on one link share the slots of the link. Objects
/// of one device cannot be used with another.
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
    pub(crate) shared: Arc<SharedLink>,
    event_queue: Arc<EventQueue>,
    /// True once the device is closed. Set before its queue pairs are destroyed, and read under
    /// the lock of their shard.
    is_closed: AtomicBool,
    /// Locked by the thread that closes the device.
    closing: Mutex<()>,
}

impl Device {
    /// Opens a link by its name. The first queue pair takes slots, for all devices of this
    /// process on the link, and starts threads. `FERROCE_SHARDS` sets the number of slots. By
    /// default there is one for each four processors, up to four.
    pub fn open(link: &str) -> Result<Arc<Device>, Error> {
        let shared = SharedLink::open(link)?;
        let event_queue = match shared.add_device() {
            Ok(event_queue) => event_queue,
            Err(error) => {
                shared.release();
                return Err(Error::system("event channel")(error));
            }
        };
        Ok(Arc::new(Device {
            shared,
            event_queue,
            is_closed: AtomicBool::new(false),
            closing: Mutex::new(()),
        }))
    }

    /// Returns the current state of the link.
    pub fn link(&self) -> Arc<LinkInfo> {
        self.shared.link()
    }

    /// Takes slots of the link now, which the first queue pair would do otherwise. No later call
    /// waits for ferroced.
    ///
    /// # Errors
    /// If ferroced does not answer, or has no free slots: the error names the processes that
    /// have them.
    pub fn attach(&self) -> Result<(), Error> {
        self.shared.attach()
    }

    /// Returns the descriptor that is readable while an asynchronous event waits. Without slots
    /// it may also be readable when there is no event: make it non-blocking before you poll it.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_queue.fd()
    }

    /// Takes the oldest asynchronous event; waits for one unless the descriptor is
    /// non-blocking.
    pub fn take_event(&self) -> std::io::Result<AsyncEvent> {
        self.event_queue.take(|| self.shared.receive())
    }

    /// Returns the cause of the last failed work request.
    pub fn last_failure(&self) -> Option<String> {
        self.event_queue
            .last_failure()
            .map(|failure| failure.to_string())
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Arc<Pd> {
        let pd = self.shared.regions.alloc_pd();
        self.shared.directory.add_pd(pd.id(), &self.event_queue);
        pd
    }

    /// Frees a protection domain that nothing uses.
    pub fn dealloc_pd(&self, pd: Arc<Pd>) -> Result<(), VerbsError> {
        let number = pd.id();
        let freed = self.shared.regions.dealloc_pd(pd);
        freed.map_err(|(_, error)| error)?;
        self.shared.directory.forget_pd(number);
        Ok(())
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
        // SAFETY: the caller keeps the same contract.
        unsafe { self.register_at(pd, MemRef::host(addr), length, iova, access) }
    }

    /// Registers memory that [`Device::locate`] has returned.
    ///
    /// # Safety
    ///
    /// As [`Device::register`]. The program may free memory of a GPU while it is registered:
    /// a work request that accesses it then fails.
    pub unsafe fn register_at(
        &self,
        pd: &Arc<Pd>,
        memory: MemRef,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, VerbsError> {
        self.check_pd(pd)?;
        self.shared
            .regions
            .register(pd, memory, length, iova, access)
    }

    /// Returns a reference to memory of the program: of a GPU if CUDA knows the address as
    /// such, else of the process. Prepares the device for copies from and to the GPU.
    ///
    /// # Errors
    /// If not all of the range is memory of the GPU, or the GPU's driver refuses a call.
    pub fn locate(&self, addr: u64, length: u64) -> Result<MemRef, VerbsError> {
        let Some(located) = gpu::locate(addr, length)? else {
            return Ok(MemRef::host(addr));
        };
        if self.shared.link().is_iwarp() {
            return Err(VerbsError::NotSupported(
                "links of type siw do not serve memory of a GPU; use type rxe".into(),
            ));
        }
        // A session of copies belongs to a shard, and the shards exist once there are slots.
        let attached = self.shared.attach();
        attached.map_err(|error| VerbsError::NoMemory(error.to_string()))?;
        for shard in self.shared.shards.iter() {
            located.prepare(&shard.gpu)?;
        }
        Ok(located.memory)
    }

    /// Registers a null region: reads return zeros, and written data is discarded.
    pub fn register_null(&self, pd: &Arc<Pd>) -> Result<Arc<Mr>, VerbsError> {
        self.check_pd(pd)?;
        self.shared.regions.register_null(pd)
    }

    /// Frees a window. After the return no packet accesses memory through it.
    pub fn dealloc_mw(&self, mw: &Arc<Mw>) -> Result<(), VerbsError> {
        let freed = self.shared.regions.dealloc_mw(mw);
        self.shared.pass_through();
        self.unless_closed(freed)
    }

    /// Allocates a memory window.
    pub fn alloc_mw(&self, pd: &Arc<Pd>, kind: MwKind) -> Result<Arc<Mw>, VerbsError> {
        self.check_pd(pd)?;
        if self.link().is_iwarp() {
            let why = "links of type siw have no memory windows, as the kernel's siw";
            return Err(VerbsError::NotSupported(why.into()));
        }
        self.shared.regions.alloc_mw(pd, kind)
    }

    /// Returns the rkey for the next bind of a type 1 window.
    pub fn next_type1_rkey(&self, mw: &Mw) -> u32 {
        self.shared.regions.next_type1_rkey(mw)
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
        self.shared.regions.local(lkey, pd, need, addr, length)
    }

    /// Changes a registration. After the return no thread of the device accesses memory that
    /// left the region.
    ///
    /// # Safety
    ///
    /// The contract of [`Device::register`] holds for the region as changed.
    pub unsafe fn reregister(&self, mr: &Arc<Mr>, change: &Rereg) -> Result<(), VerbsError> {
        if let Some(pd) = &change.pd {
            self.check_pd(pd)?;
        }
        self.shared.regions.reregister(mr, change)?;
        self.shared.pass_through();
        Ok(())
    }

    /// Deregisters memory. After the return no thread of the device accesses it.
    pub fn deregister(&self, mr: &Arc<Mr>) -> Result<(), VerbsError> {
        let deregistered = self.shared.regions.deregister(mr);
        // A region that is not found may have left the table a moment ago, with its device.
        self.shared.pass_through();
        self.unless_closed(deregistered)
    }

    /// Creates a completion channel.
    pub fn create_channel(&self) -> Result<Arc<CompletionChannel>, Error> {
        let channel = CompletionChannel::new(Arc::clone(&self.shared.shards))
            .map_err(Error::system("completion channel"))?;
        Ok(Arc::new(channel))
    }

    /// Creates a completion channel for a program that has not asked for one. Call
    /// [`CompletionChannel::prepare`] before an event is requested.
    pub fn create_lazy_channel(&self) -> Result<Arc<CompletionChannel>, Error> {
        let channel = CompletionChannel::new_lazy(Arc::clone(&self.shared.shards))
            .map_err(Error::system("completion channel"))?;
        Ok(Arc::new(channel))
    }

    /// Creates a completion queue.
    pub fn create_cq(
        &self,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> Result<Arc<Cq>, VerbsError> {
        let (directory, shards) = (&self.shared.directory, &self.shared.shards);
        let cq = Cq::new(directory.new_cq(), entries, channel, Arc::clone(shards))?;
        let cq = Arc::new(cq);
        directory.add_cq(&cq, &self.event_queue);
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
        self.shared.directory.forget_cq(cq.id());
        cq.purge();
        cq.queue().close();
        Ok(())
    }

    /// Creates a shared receive queue.
    pub fn create_srq(&self, pd: &Arc<Pd>, init: SrqInit) -> Result<Arc<Srq>, VerbsError> {
        self.check_pd(pd)?;
        let directory = &self.shared.directory;
        let srq = Srq::new(directory.new_srq(), Arc::clone(pd), init)?;
        directory.add_srq(&srq, &self.event_queue);
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
        if self.link().is_iwarp() {
            return Err(VerbsError::NotSupported("iWARP has no XRC".into()));
        }
        self.attach().map_err(no_slots)?;
        let srq = self.create_srq(pd, init)?;
        for shard in 0..self.shared.shards.slots().len() {
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
        if let Some(pd) = &init.pd {
            self.check_pd(pd)?;
        }
        if let Some(srq) = &init.srq {
            self.check_pd(srq.pd())?;
        }
        for cq in completes_in {
            self.check_cq(cq)?;
        }
        let index = self.shared.next_shard().map_err(no_slots)?;
        for cq in completes_in {
            cq.serve(index);
        }
        let shard = self.shared.shards.get(index);
        let (qpn, cap) = shard.with_core(|core, _, _| {
            if self.is_closed() {
                return Err(closed());
            }
            if init.qp_type.is_datagram() {
                core.roce()?.expect_datagrams();
            }
            let created = core.adapter().create_qp(init)?;
            self.shared.directory.add_qp(created.0, &self.event_queue);
            Ok(created)
        })?;
        let (device, shard) = (Arc::clone(self), Arc::clone(shard));
        Ok(Qp::new(device, shard, qpn, cap, init))
    }

    /// Gives a queue pair of an iWARP link the stream of a connection. The queue pair may be of
    /// another device of this process on the link.
    ///
    /// # Errors
    /// If the queue pair does not exist, or has had a connection and was not reset.
    pub fn connect_stream(&self, qpn: u32, setup: StreamSetup) -> Result<(), VerbsError> {
        let shard = self.shard_of(qpn)?;
        let wire = self.shared.wire_for(shard, &setup);
        shard.with_core(|core, now, process| core.iwarp()?.connect(now, process, qpn, setup, wire))
    }

    /// Ends the connection of a queue pair of an iWARP link in order.
    ///
    /// # Errors
    /// If the queue pair has no connection.
    pub fn disconnect_stream(&self, qpn: u32) -> Result<(), VerbsError> {
        self.shard_of(qpn)?
            .with_core(|core, now, process| core.iwarp()?.disconnect(now, process, qpn))
    }

    fn shard_of(&self, qpn: u32) -> Result<&Shard, VerbsError> {
        let shard = self.shared.shards.of_qpn(qpn);
        shard.map(|shard| &**shard).ok_or_else(|| {
            let link = self.shared.link().name.clone();
            VerbsError::NotFound(format!("{link} has no queue pair {qpn:#x} of this process"))
        })
    }

    /// Creates an address handle.
    pub fn create_ah(&self, pd: &Arc<Pd>, attr: &AhAttr) -> Result<Arc<AddressHandle>, VerbsError> {
        if self.link().is_iwarp() {
            return Err(VerbsError::NotSupported(
                "iWARP has no address handles".into(),
            ));
        }
        let av = self.resolve(attr)?;
        let is_local = self.shared.may_send_in_memory(&self.link(), &av);
        Ok(AddressHandle::with_locality(Arc::clone(pd), av, is_local))
    }

    /// Returns a route in IP addresses, once its source address can be used.
    pub(crate) fn resolve(&self, attr: &AhAttr) -> Result<AddressVector, VerbsError> {
        let link = self.link();
        let (gid, av) = attr.resolve(&link)?;
        self.await_usable(gid)?;
        Ok(av)
    }

    /// Sends deferred ACKs and posts that wait for more of them. Call it before the process
    /// ends.
    pub fn flush_deferred(&self) {
        for shard in self.shared.shards.iter() {
            shard.stop_seeking_routes();
            shard.flush_deferred();
            shard.send_held();
        }
    }

    /// Returns true if the devices of this process on the link have sent or received a packet.
    pub fn has_traffic(&self) -> bool {
        self.shared.shards.have_traffic()
    }

    /// Closes the device, even if objects are left: its queue pairs are destroyed, and its
    /// memory is deregistered. ferroced gets the slots back if no other device of this process
    /// uses them. Remaining objects can only be dropped.
    pub fn close(&self) {
        if self.shared.is_of_parent() {
            // A forked child has no threads, and must not end those of its parent. A thread
            // that does not exist in the child may hold the locks.
            return;
        }
        let _closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_closed.swap(true, Ordering::AcqRel) {
            self.shared.end_device(&self.event_queue);
        }
    }

    /// Returns true if the device is closed, and has no queue pairs any more.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Notes that packets of a queue pair take another path from now on.
    pub(crate) fn forget_path(&self, qpn: u32) {
        self.shared.directory.taps.path_changes(qpn);
    }

    /// Forgets a queue pair. The caller holds the lock of its shard.
    pub(crate) fn forget_qp(&self, qpn: u32) {
        self.shared.directory.forget_qp(qpn);
    }

    /// Returns success for a region or window that the end of the device has freed before.
    fn unless_closed(&self, freed: Result<(), VerbsError>) -> Result<(), VerbsError> {
        match freed {
            Err(VerbsError::NotFound(_)) if self.is_closed() => Ok(()),
            freed => freed,
        }
    }

    /// Refuses a protection domain of another device.
    fn check_pd(&self, pd: &Pd) -> Result<(), VerbsError> {
        match self.shared.directory.device_of_pd(pd.id()) {
            Some(device) if device == self.event_queue.number() => Ok(()),
            _ => Err(VerbsError::Invalid(format!(
                "protection domain {} is of another device, or its device is closed",
                pd.id()
            ))),
        }
    }

    /// Refuses a completion queue of another device.
    fn check_cq(&self, cq: &Cq) -> Result<(), VerbsError> {
        let directory = &self.shared.directory;
        let is_own = directory.device_of_cq(cq) == Some(self.event_queue.number());
        match is_own {
            true => Ok(()),
            false => Err(VerbsError::Invalid(format!(
                "completion queue {} is of another device, or is destroyed",
                cq.id()
            ))),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns the error for a queue pair that gets no slot or no thread.
fn no_slots(error: Error) -> VerbsError {
    match error {
        Error::Verbs(error) => error,
        error => {
            tracing::warn!("no queue pair: {error}");
            VerbsError::NoMemory(error.to_string())
        }
    }
}

/// Returns the error for an object of a closed device.
pub(crate) fn closed() -> VerbsError {
    VerbsError::Invalid("the device is closed".into())
}

/// Returns the active MTU of a link's port.
pub(crate) fn port_mtu(link: &LinkInfo) -> Mtu {
    Mtu::from_bytes(link.active_mtu as usize).unwrap_or(Mtu::Mtu256)
}
