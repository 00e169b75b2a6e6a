//! A program's end of a channel: the memory, a socket, and the bell of the other end.

use core::mem::MaybeUninit;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, send, sendmsg,
    shutdown, socketpair,
};

use super::bell::{Bell, PeerBell};
use super::channels::Endpoint;
use super::memory::{self, Memory, RingView};
use super::ring::{RingMemory, has_record, is_armed};

/// One of the two ends of a channel. It names the ring that an end writes to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Side {
    /// Writes to ring 0 and reads from ring 1.
    First,
    /// Writes to ring 1 and reads from ring 0.
    Second,
    /// Writes to ring 0 and reads from it: both ends are one slot.
    Both,
}

/// The state of the program at the other end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Readiness {
    /// It reads the channel.
    Ready,
    /// It has not mapped the memory yet.
    NotYet,
    /// It has closed the channel, or has died.
    Closed,
}

/// No position: the outgoing ring is not full.
const HAS_ROOM: u64 = u64::MAX;

/// Creates the parts of a channel: the memory, and a socket for each end.
///
/// # Errors
/// If the process or the machine has too many open files, or no memory.
pub fn create_channel() -> io::Result<(OwnedFd, [OwnedFd; 2])> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (first, second) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok((memory::create()?, [first, second]))
}

/// This process's end of a channel to another slot.
#[derive(Debug)]
pub struct End {
    peer: u8,
    outgoing: RingView,
    incoming: RingView,
    /// The bell of the other end arrives here, and bytes when a thread of this process shall wake
    /// up and the other end has no bell.
    socket: OwnedFd,
    /// The socket to wake the other end by, if that is this process, too.
    own_peer: Option<OwnedFd>,
    /// The bell to wake the other end by.
    bell: OnceLock<PeerBell>,
    /// Bytes read from the incoming ring, for threads that do not read it themselves.
    read: AtomicU64,
    /// Position of the other end's reader when the outgoing ring had no room; [`HAS_ROOM`] if a
    /// record did fit since.
    full_at: AtomicU64,
    is_ready: AtomicBool,
    /// True if a thread has waited in vain for the other end.
    is_late: AtomicBool,
    is_closed: AtomicBool,
}

impl End {
    /// Returns an end of the channel to the slot `peer`. [`End::announce`] tells the other end that
    /// this one is ready.
    ///
    /// # Errors
    /// If the file is not one of [`create_channel`], or cannot be mapped.
    pub fn new(peer: u8, memory: OwnedFd, socket: OwnedFd, side: Side) -> io::Result<End> {
        let memory = Arc::new(Memory::map(&memory)?);
        let (outgoing, incoming) = match side {
            Side::First => (0, 1),
            Side::Second => (1, 0),
            Side::Both => (0, 0),
        };
        Ok(End {
            peer,
            outgoing: RingView::new(&memory, outgoing),
            incoming: RingView::new(&memory, incoming),
            socket,
            own_peer: None,
            bell: OnceLock::new(),
            read: AtomicU64::new(0),
            full_at: AtomicU64::new(HAS_ROOM),
            is_ready: AtomicBool::new(side == Side::Both),
            is_late: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Creates a channel from a slot to itself.
    ///
    /// # Errors
    /// As [`create_channel`].
    pub fn to_itself(slot: u8) -> io::Result<End> {
        let (memory, [first, second]) = create_channel()?;
        let mut end = End::new(slot, memory, first, Side::Both)?;
        end.own_peer = Some(second);
        Ok(end)
    }

    /// Creates a channel between two slots of this process.
    ///
    /// # Errors
    /// As [`create_channel`].
    pub fn pair(slots: [u8; 2]) -> io::Result<[End; 2]> {
        let (memory, [first, second]) = create_channel()?;
        let ends = [
            End::new(slots[1], memory.try_clone()?, first, Side::First)?,
            End::new(slots[0], memory, second, Side::Second)?,
        ];
        ends.iter()
            .for_each(|end| end.is_ready.store(true, Ordering::Relaxed));
        Ok(ends)
    }

    /// Returns the sockets. While a copy of them is open, the other end is not told that this
    /// process has ended.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = core::iter::once(&self.socket).chain(&self.own_peer);
        sockets.map(AsFd::as_fd)
    }

    /// Returns the slot at the other end.
    pub fn peer(&self) -> u8 {
        self.peer
    }

    /// Returns the writing end of the outgoing ring. A channel has one.
    #[cfg(test)]
    pub(super) fn writer(&self) -> super::ring::Writer<RingView> {
        super::ring::Writer::new(self.outgoing.clone())
    }

    /// Returns the reading end of the incoming ring. A channel has one.
    #[cfg(test)]
    pub(super) fn reader(&self) -> super::ring::Reader<RingView> {
        super::ring::Reader::new(self.incoming.clone())
    }

    /// Returns true if a packet waits, or if a stream waited for room that there is now.
    #[inline]
    pub(super) fn has_packet(&self) -> bool {
        let has_record = has_record(&self.incoming, self.read.load(Ordering::Relaxed));
        (has_record || self.has_made_room()) && !self.is_closed()
    }

    /// Returns true if the outgoing ring has memory behind its front.
    #[inline]
    pub(super) fn is_extended(&self) -> bool {
        self.outgoing.is_extended()
    }

    /// Notes the position of the other end's reader when a stream found no room, or none once a
    /// record did fit.
    pub(super) fn note_full(&self, head: Option<u64>) {
        self.full_at
            .store(head.unwrap_or(HAS_ROOM), Ordering::Relaxed);
    }

    /// Returns true if a stream found no room in its last write.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.full_at.load(Ordering::Relaxed) != HAS_ROOM
    }

    /// Returns true if the other end has read something since a stream found no room.
    #[inline]
    pub(super) fn has_made_room(&self) -> bool {
        let full_at = self.full_at.load(Ordering::Relaxed);
        full_at != HAS_ROOM && self.outgoing.head().load(Ordering::Acquire) != full_at
    }

    /// Returns true if the other end has seen that a thread sleeps here, and sends a wakeup. Without,
    /// a thread that wakes up asks the kernel which socket has one.
    pub(super) fn is_woken(&self) -> bool {
        !is_armed(&self.incoming)
    }

    /// Tells the other end that this one is ready. Without a bell, the other end wakes this one by
    /// the socket.
    pub fn announce(&self) {
        self.announce_with(None);
    }

    /// Tells the other end that this one is ready, and sends it the bell to wake this one by.
    pub(super) fn announce_bell(&self, bell: &Bell) {
        if self.own_peer.is_some() {
            self.set_bell(bell.shared());
        } else {
            self.announce_with(Some(bell.shared()));
        }
    }

    fn announce_with(&self, bell: Option<BorrowedFd<'_>>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(bell) = &bell {
            control.push(SendAncillaryMessage::ScmRights(core::slice::from_ref(bell)));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if sendmsg(&self.socket, &[IoSlice::new(&[0])], &mut control, flags).is_err() {
            // The other end is closed, or the user has too many descriptors under way.
            self.send_byte();
        }
    }

    /// Opens the bell of the other end. The first one counts.
    fn set_bell(&self, shared: BorrowedFd<'_>) {
        if self.bell.get().is_some() {
            return;
        }
        match PeerBell::open(shared) {
            Ok(bell) => drop(self.bell.set(bell)),
            Err(error) => {
                tracing::debug!("slot {} is woken by its socket: {error}", self.peer);
            }
        }
    }

    /// Wakes the threads that sleep at the other end.
    pub(super) fn wake(&self) {
        match self.bell.get() {
            Some(bell) => bell.ring(),
            None => self.send_byte(),
        }
    }

    fn send_byte(&self) {
        let socket = self.own_peer.as_ref().unwrap_or(&self.socket);
        // The flag and not the mode of the socket: the other process can change the mode. The
        // call fails if the other end is closed, or if earlier wakeups wait there.
        let _full = send(socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Returns true if this end can wake the other one by its bell.
    pub(super) fn has_bell(&self) -> bool {
        self.bell.get().is_some()
    }

    /// Takes all wakeups that have arrived at the socket, and the bell. Returns true if the other end is
    /// closed.
    pub(super) fn take_wakeups(&self) -> bool {
        let mut bytes = [0; 256];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let mut iov = [IoSliceMut::new(&mut bytes)];
            let received = recvmsg(&self.socket, &mut iov, &mut control, flags);
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(bells) = message {
                    bells.for_each(|bell| self.set_bell(bell.as_fd()));
                }
            }
            match received.map(|message| message.bytes) {
                Ok(0) => break,
                // A message with a bell ends before the next byte: look again.
                Ok(_) => self.is_ready.store(true, Ordering::Relaxed),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                    return self.is_closed();
                }
                Err(_) => break,
            }
        }
        self.is_closed.store(true, Ordering::Relaxed);
        true
    }

    /// Waits for the other end to be ready, for at most `timeout`. After a wait in vain no
    /// further call waits.
    pub fn await_ready(&self, timeout: Duration) -> Readiness {
        let mut left = timeout;
        loop {
            match self.readiness() {
                Readiness::NotYet if self.is_late.load(Ordering::Relaxed) => {
                    return Readiness::NotYet;
                }
                Readiness::NotYet if left.is_zero() => {
                    self.is_late.store(true, Ordering::Relaxed);
                }
                Readiness::NotYet => {}
                known => return known,
            }
            // Another thread may take the wakeup that announces it: look again soon.
            let slice = left.min(Duration::from_millis(2));
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            let _interrupted = poll(&mut fds, Timespec::try_from(slice).ok().as_ref());
            left -= slice;
        }
    }

    /// Waits until the other end has announced itself, for at most `timeout`, and takes its bell.
    /// Returns false if it has not. An end that has closed after its announcement may have
    /// written bytes.
    pub fn await_announcement(&self, timeout: Duration) -> bool {
        let mut left = timeout;
        loop {
            let is_closed = self.take_wakeups();
            if self.is_ready.load(Ordering::Relaxed) {
                return true;
            }
            if is_closed || left.is_zero() {
                return false;
            }
            let slice = left.min(Duration::from_millis(10));
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            let _interrupted = poll(&mut fds, Timespec::try_from(slice).ok().as_ref());
            left -= slice;
        }
    }

    /// Returns the state of the other end.
    pub fn readiness(&self) -> Readiness {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        let events = fds[0].revents();
        let hung_up = events.intersects(PollFlags::HUP | PollFlags::ERR);
        let is_ready = self.is_ready.load(Ordering::Relaxed);
        if self.is_closed() || polled.is_ok() && hung_up {
            return Readiness::Closed;
        }
        match is_ready || events.contains(PollFlags::IN) {
            true => Readiness::Ready,
            false => Readiness::NotYet,
        }
    }

    /// Closes the channel: the other end sends and receives nothing from now on.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let _closed = shutdown(&self.socket, Shutdown::Both);
    }

    /// Returns true if either end is closed.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

impl Endpoint for End {
    type Ring = RingView;

    #[inline]
    fn peer(&self) -> u8 {
        self.peer
    }

    #[inline]
    fn outgoing(&self) -> &RingView {
        &self.outgoing
    }

    #[inline]
    fn incoming(&self) -> &RingView {
        &self.incoming
    }

    #[inline]
    fn is_closed(&self) -> bool {
        End::is_closed(self)
    }

    fn close(&self) {
        End::close(self);
    }

    fn is_gone(&self) -> bool {
        self.readiness() == Readiness::Closed
    }

    fn wake(&self) {
        End::wake(self);
    }

    #[inline]
    fn note_read(&self, head: u64) {
        self.read.store(head, Ordering::Relaxed);
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
