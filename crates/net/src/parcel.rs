//! A whole group of sockets held by one descriptor.
//!
//! The kernel numbers the sockets of a port's group; when one is closed, the last
//! takes its number, and packets go to the wrong slot. So none may be closed while
//! any is in use, even if the daemon that made them is killed. Every program
//! therefore holds all of them, but as one descriptor and without the means to
//! mix them up: one end of a socket pair, in whose queue they lie unread.
//! Descriptors in flight are open files like any others.
//!
//! A new daemon reads them from the parcel of any program that survived. It looks
//! without taking, so the parcel stays what it is.
//!
//! The kernel counts descriptors in flight per user and allows an unprivileged
//! sender RLIMIT_NOFILE of them. A parcel counts with all that is in it, but
//! copies of its descriptor cost nothing: give everybody the same parcel until
//! the group grows, let it grow by several slots at a time, and raise the limit.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_wire::ROCE_PORT;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrAny, SocketFlags, SocketType,
};

use crate::slot::SlotSockets;
use crate::socket;

/// Slots per message: the kernel takes 253 descriptors, two of each slot.
const SLOTS_PER_MESSAGE: usize = 120;
const MAGIC: &[u8; 4] = b"slot";
/// Magic, number of the first slot, how many, whether with IPv6.
const LABEL_LEN: usize = 7;

/// One descriptor that keeps the sockets of slots 0, 1, 2, ... open.
#[derive(Debug)]
pub struct Parcel(OwnedFd);

impl Parcel {
    /// Packs the sockets of the slots from 0 on. The caller may close its own.
    ///
    /// # Errors
    /// If too many descriptors are in flight or open.
    pub fn pack(slots: &[SlotSockets]) -> io::Result<Parcel> {
        let (queue, feed) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        for (nth, slots) in slots.chunks(SLOTS_PER_MESSAGE).enumerate() {
            send(&feed, (nth * SLOTS_PER_MESSAGE) as u8, slots).map_err(explain)?;
        }
        Ok(Parcel(queue))
    }

    /// The sockets, in order, while the parcel still holds them too. Whatever is
    /// not a socket of such a group and of this user makes it fail.
    ///
    /// # Errors
    /// If this is not a parcel, or there are too many open files.
    pub fn contents(&self) -> io::Result<Vec<SlotSockets>> {
        // From here on every look is at the message behind the last one.
        self.peek_from(0)?;
        let result = self.look();
        self.peek_from(-1)?;
        result
    }

    fn look(&self) -> io::Result<Vec<SlotSockets>> {
        let mut slots = Vec::new();
        while let Some((label, fds)) = receive(&self.0)? {
            if usize::from(label.first) != slots.len() {
                return Err(wrong("its messages are not in order"));
            }
            label.sort(fds, &mut slots)?;
        }
        slots.iter().try_for_each(check)?;
        Ok(slots)
    }

    fn peek_from(&self, offset: i32) -> io::Result<()> {
        socket::set_number(&self.0, libc::SOL_SOCKET, libc::SO_PEEK_OFF, offset)
    }
}

impl From<OwnedFd> for Parcel {
    /// A parcel that came from elsewhere; [`Parcel::contents`] checks it.
    fn from(fd: OwnedFd) -> Parcel {
        Parcel(fd)
    }
}

impl From<Parcel> for OwnedFd {
    fn from(parcel: Parcel) -> OwnedFd {
        parcel.0
    }
}

impl AsFd for Parcel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What a message of a parcel holds.
struct Label {
    first: u8,
    count: u8,
    v6: bool,
}

impl Label {
    fn parse(bytes: &[u8]) -> Option<Label> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        match *rest {
            [first, count, v6 @ (0 | 1)] if magic == MAGIC => Some(Label {
                first,
                count,
                v6: v6 == 1,
            }),
            _ => None,
        }
    }

    fn emit(&self) -> [u8; LABEL_LEN] {
        let [a, b, c, d] = *MAGIC;
        [a, b, c, d, self.first, self.count, u8::from(self.v6)]
    }

    /// Adds the descriptors to `slots`, in pairs or one by one.
    fn sort(&self, fds: Vec<OwnedFd>, slots: &mut Vec<SlotSockets>) -> io::Result<()> {
        let per_slot = if self.v6 { 2 } else { 1 };
        if fds.len() != usize::from(self.count) * per_slot {
            return Err(wrong("sockets are missing"));
        }
        let mut fds = fds.into_iter();
        while let Some(v4) = fds.next() {
            let v6 = if self.v6 { fds.next() } else { None };
            slots.push(SlotSockets { v4, v6 });
        }
        Ok(())
    }
}

fn send(feed: &OwnedFd, first: u8, slots: &[SlotSockets]) -> io::Result<()> {
    let v6 = slots.iter().all(|slot| slot.v6.is_some());
    if !v6 && slots.iter().any(|slot| slot.v6.is_some()) {
        return Err(wrong("some slots have IPv6 and some have not"));
    }
    let fds: Vec<BorrowedFd<'_>> = slots
        .iter()
        .flat_map(|slot| std::iter::once(&slot.v4).chain(&slot.v6))
        .map(AsFd::as_fd)
        .collect();
    let label = Label {
        first,
        count: slots.len() as u8,
        v6,
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * SLOTS_PER_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let label = label.emit();
    rustix::net::sendmsg(
        feed,
        &[IoSlice::new(&label)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// The next message, left where it is; none at the end.
fn receive(queue: &OwnedFd) -> io::Result<Option<(Label, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * SLOTS_PER_MESSAGE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; LABEL_LEN + 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match rustix::net::recvmsg(
        queue,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        flags,
    ) {
        Err(rustix::io::Errno::AGAIN) => return Ok(None),
        result => result?,
    };
    let fds = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    match Label::parse(&bytes[..received.bytes]) {
        Some(label) => Ok(Some((label, fds))),
        None if received.bytes == 0 => Ok(None),
        None => Err(wrong("it holds something else")),
    }
}

/// Whether these are sockets that [`create_slot`](crate::create_slot) made, of
/// this user: nobody else can have some of this user on this port.
fn check(slot: &SlotSockets) -> io::Result<()> {
    check_socket(&slot.v4, AddressFamily::INET)?;
    match &slot.v6 {
        Some(v6) => check_socket(v6, AddressFamily::INET6),
        None => Ok(()),
    }
}

fn check_socket(fd: &OwnedFd, family: AddressFamily) -> io::Result<()> {
    use rustix::net::{ipproto, sockopt};
    let owner = rustix::fs::fstat(fd)?.st_uid;
    let right = sockopt::socket_domain(fd)? == family
        && sockopt::socket_protocol(fd)? == Some(ipproto::UDP)
        && owner == rustix::process::geteuid().as_raw()
        && match SocketAddrAny::try_into(rustix::net::getsockname(fd)?) {
            Ok(std::net::SocketAddr::V4(a)) => a.ip().is_unspecified() && a.port() == ROCE_PORT,
            Ok(std::net::SocketAddr::V6(a)) => a.ip().is_unspecified() && a.port() == ROCE_PORT,
            Err(_) => false,
        };
    match right {
        true => Ok(()),
        false => Err(wrong("a socket in it does not belong to the group")),
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("not a parcel of slot sockets: {what}"),
    )
}

fn explain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ETOOMANYREFS) => io::Error::new(
            error.kind(),
            "this user has more descriptors in flight than RLIMIT_NOFILE allows (`ulimit -n`)",
        ),
        _ => error,
    }
}
