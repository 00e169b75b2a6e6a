//! Attaches a program to a link, and resumes the attachment after a restart of ferroced, on a
//! connection for this attachment alone. Programs use [`crate::client`], in which all
//! attachments share one connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::connection::{Connection, find_daemon, next_request_number, unexpected};
use crate::counters::CounterPage;
use crate::credit_page::CreditPage;
use crate::error::Error;
use crate::link::LinkInfo;
use crate::protocol::{Reply, Request, SlotGrant, SlotKind};
use crate::socket_escrow::SocketEscrow;

/// A program's slots of a link. ferroced takes the slots back when the connection closes or
/// the process ends. So stop using the sockets before dropping the connection.
#[derive(Debug)]
pub struct Attachment {
    /// The link at the time of the attachment; events carry newer versions.
    pub link: LinkInfo,
    /// The slots, one per requested shard.
    pub slots: Vec<AttachedSlot>,
    /// Descriptors that the next ferroced needs. Keep them until the program has stopped using
    /// the slots, and pass them to [`resume`].
    pub descriptors: ResumeDescriptors,
    /// The connection, on which events of the link arrive.
    pub connection: Connection,
}

/// Descriptors that the next ferroced needs.
#[derive(Debug)]
pub enum ResumeDescriptors {
    /// Those of [`SlotKind::Udp`].
    Udp {
        /// Keeps the socket group open.
        escrow: SocketEscrow,
        /// Memory shared with all programs.
        credits: CreditPage,
    },
    /// Those of [`SlotKind::Streams`]: the counters of each slot.
    Streams(Vec<CounterPage>),
}

impl ResumeDescriptors {
    /// Returns the kind of the slots.
    pub fn kind(&self) -> SlotKind {
        match self {
            ResumeDescriptors::Udp { .. } => SlotKind::Udp,
            ResumeDescriptors::Streams(_) => SlotKind::Streams,
        }
    }

    /// Returns the descriptors in the order of [`Request::Resume`].
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            ResumeDescriptors::Udp { escrow, credits } => {
                let mut fds: Vec<BorrowedFd<'_>> = escrow.fds().into();
                fds.push(credits.as_fd());
                fds
            }
            ResumeDescriptors::Streams(counters) => counters.iter().map(AsFd::as_fd).collect(),
        }
    }
}

/// One slot: the QPNs `slot << 16` to `(slot << 16) + 0xFFFF`, with sockets and counters.
#[derive(Debug)]
pub struct AttachedSlot {
    /// The top byte of the QPNs.
    pub slot: u8,
    /// The IPv4 socket of the slot, and the IPv6 socket if the kernel has IPv6; none with
    /// [`SlotKind::Streams`].
    pub sockets: Option<(OwnedFd, Option<OwnedFd>)>,
    /// The page of counters in shared memory, all zero.
    pub counters: CounterPage,
}

/// Connects to ferroced and attaches to a link, with `shards` slots.
pub fn attach(link: &str, shards: u8) -> Result<Attachment, Error> {
    let connection = find_daemon()?.ok_or(Error::NoDaemon)?;
    attach_on(connection, link, shards)
}

/// Attaches to a link on an open connection.
pub fn attach_on(mut connection: Connection, link: &str, shards: u8) -> Result<Attachment, Error> {
    let request = Request::Attach {
        attachment: next_request_number(),
        link: link.into(),
        shards,
    };
    match connection.request(&request)? {
        (Reply::Attached { link, slots, .. }, fds) => {
            let (descriptors, slots) = unpack(SlotKind::of(&link), &slots, fds)?;
            Ok(Attachment {
                link,
                slots,
                descriptors,
                connection,
            })
        }
        (other, _) => Err(unexpected(&other)),
    }
}

/// Registers slots with a ferroced that has been restarted. `dir` is the directory of the
/// old connection; `link`, `slots` and `descriptors` are those of the attachment. Returns the new
/// connection and the present state of the link, or `None` if the link is gone.
///
/// # Errors
/// [`Error::NoDaemon`] if no ferroced runs yet; [`Watch`] tells when to try again. Until then
/// everything but events and new attachments works.
pub fn resume(
    dir: &Path,
    link: &str,
    slots: &[u8],
    descriptors: &ResumeDescriptors,
) -> Result<(Connection, Option<LinkInfo>), Error> {
    let mut connection = Connection::connect(dir)?;
    let request = Request::Resume {
        attachment: next_request_number(),
        link: link.into(),
        kind: descriptors.kind(),
        slots: slots.into(),
    };
    match connection.request_with(&request, &descriptors.fds())? {
        (Reply::Resumed { link }, _) => Ok((connection, link)),
        (other, _) => Err(unexpected(&other)),
    }
}

/// A watch on a runtime directory. Its descriptor becomes readable when a control socket
/// appears. Create it first, then try [`resume`] once, then wait.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Starts to watch a runtime directory.
    pub fn new(dir: &Path) -> Result<Watch, Error> {
        let what = || format!("cannot watch {}", dir.display());
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|e| Error::system(what(), e))?;
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO;
        inotify::add_watch(&fd, dir, flags).map_err(|e| Error::system(what(), e))?;
        Ok(Watch(fd))
    }

    /// Discards pending events. Call this before trying [`resume`] again.
    pub fn clear(&self) {
        let mut buffer = [0; 4096];
        while rustix::io::read(&self.0, &mut buffer).is_ok_and(|read| read > 0) {}
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(crate) type Unpacked = (ResumeDescriptors, Vec<AttachedSlot>);

/// Takes the parts of [`Reply::Attached`] from its descriptors.
pub(crate) fn unpack(
    kind: SlotKind,
    grants: &[SlotGrant],
    fds: Vec<OwnedFd>,
) -> Result<Unpacked, Error> {
    match kind {
        SlotKind::Udp => unpack_udp(grants, fds),
        SlotKind::Streams => unpack_streams(grants, fds),
    }
}

/// Takes the counters of each slot.
fn unpack_streams(grants: &[SlotGrant], fds: Vec<OwnedFd>) -> Result<Unpacked, Error> {
    if fds.len() != grants.len() {
        return Err(Error::DescriptorsLost);
    }
    let (mut pages, mut slots) = (Vec::new(), Vec::new());
    for (grant, fd) in grants.iter().zip(fds) {
        let counters = counter_page(grant, fd)?;
        let copy = counters.try_clone();
        pages.push(copy.map_err(|error| Error::system("the counter page", error))?);
        slots.push(AttachedSlot {
            slot: grant.slot,
            sockets: None,
            counters,
        });
    }
    Ok((ResumeDescriptors::Streams(pages), slots))
}

fn counter_page(grant: &SlotGrant, fd: OwnedFd) -> Result<CounterPage, Error> {
    CounterPage::from_fd(fd).map_err(|error| Error::CounterPage {
        slot: grant.slot,
        error,
    })
}

fn unpack_udp(grants: &[SlotGrant], fds: Vec<OwnedFd>) -> Result<Unpacked, Error> {
    let expected = |g: &SlotGrant| 2 + usize::from(g.v6);
    let mut fds = fds.into_iter();
    if fds.len() != 3 + grants.iter().map(expected).sum::<usize>() {
        return Err(Error::DescriptorsLost);
    }
    let mut next = || fds.next().ok_or(Error::DescriptorsLost);
    let escrow = SocketEscrow::from_fds([next()?, next()?]);
    let credits = next()?;
    let credits = CreditPage::from_fd(credits).map_err(|e| Error::system("the credit page", e))?;
    let mut slots = Vec::with_capacity(grants.len());
    for grant in grants {
        slots.push(AttachedSlot {
            slot: grant.slot,
            sockets: Some((next()?, if grant.v6 { Some(next()?) } else { None })),
            counters: counter_page(grant, next()?)?,
        });
    }
    Ok((ResumeDescriptors::Udp { escrow, credits }, slots))
}
