//! What the device layer needs: slots of a link, and getting them back when ferroced
//! was restarted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::connection::{Connection, find_daemon, unexpected};
use crate::counters::CounterPage;
use crate::credit_page::CreditPage;
use crate::error::Error;
use crate::link::LinkInfo;
use crate::parcel::Parcel;
use crate::protocol::{Reply, Request, SlotGrant};

/// A program's share of a link. It lasts as long as the connection is open: ferroced
/// takes the slots back when the connection closes or the process ends. So stop using
/// the sockets before dropping the connection.
#[derive(Debug)]
pub struct Attachment {
    /// The link when it was attached; events bring newer versions.
    pub link: LinkInfo,
    /// The slots, one for each shard asked for.
    pub slots: Vec<AttachedSlot>,
    /// Keep it until all slots are given up, and hand it to [`resume`].
    pub parcel: Parcel,
    /// Memory shared with all programs; hand it to [`resume`] as well.
    pub credits: CreditPage,
    /// Events of the link arrive here.
    pub connection: Connection,
}

/// One slot: QPNs `slot << 16` to `(slot << 16) + 0xFFFF`, and what belongs to them.
#[derive(Debug)]
pub struct AttachedSlot {
    /// The top byte of the QPNs.
    pub slot: u8,
    /// The IPv4 socket of the slot, and the IPv6 one where the kernel has IPv6.
    pub sockets: (OwnedFd, Option<OwnedFd>),
    /// Shared memory of one page for the counters, all zero.
    pub counters: CounterPage,
}

/// All links that this user can use here; none if no ferroced runs.
pub fn list_links() -> Result<Vec<LinkInfo>, Error> {
    match find_daemon()? {
        None => Ok(Vec::new()),
        Some(mut connection) => connection.links(),
    }
}

/// Takes `shards` slots of a link.
pub fn attach(link: &str, shards: u8) -> Result<Attachment, Error> {
    let connection = find_daemon()?.ok_or(Error::NoDaemon)?;
    attach_on(connection, link, shards)
}

/// The same on a connection that is open already.
pub fn attach_on(mut connection: Connection, link: &str, shards: u8) -> Result<Attachment, Error> {
    let request = Request::Attach {
        link: link.into(),
        shards,
    };
    match connection.request(&request)? {
        (Reply::Attached { link, slots }, fds) => {
            let (parcel, credits, slots) = unpack(&slots, fds)?;
            Ok(Attachment {
                link,
                slots,
                parcel,
                credits,
                connection,
            })
        }
        (other, _) => Err(unexpected(&other)),
    }
}

/// Registers slots anew with a ferroced that has been restarted: `dir` is that of the
/// old connection, `link`, `slots`, `parcel` and `credits` those of the attachment. Returns the
/// new connection and the link as it is now, or none if it exists no more.
///
/// [`Error::NoDaemon`]: not yet; [`Watch`] tells when to try again. Until then
/// everything but events and new attachments works as before.
pub fn resume(
    dir: &Path,
    link: &str,
    slots: &[u8],
    parcel: &Parcel,
    credits: &CreditPage,
) -> Result<(Connection, Option<LinkInfo>), Error> {
    let mut connection = Connection::connect(dir)?;
    let request = Request::Resume {
        link: link.into(),
        slots: slots.into(),
    };
    let [rx, tx] = parcel.fds();
    match connection.request_with(&request, &[rx, tx, credits.as_fd()])? {
        (Reply::Resumed { link }, _) => Ok((connection, link)),
        (other, _) => Err(unexpected(&other)),
    }
}

/// Tells when a new ferroced may have come: its descriptor becomes readable when a
/// control socket appears. Make it first, then try [`resume`] once, then wait.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Watches a runtime directory.
    pub fn new(dir: &Path) -> Result<Watch, Error> {
        let what = || format!("cannot watch {}", dir.display());
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|e| Error::system(what(), e))?;
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO;
        inotify::add_watch(&fd, dir, flags).map_err(|e| Error::system(what(), e))?;
        Ok(Watch(fd))
    }

    /// Forgets what has been seen so far; call it before trying [`resume`] again.
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

type Unpacked = (Parcel, CreditPage, Vec<AttachedSlot>);

fn unpack(grants: &[SlotGrant], fds: Vec<OwnedFd>) -> Result<Unpacked, Error> {
    let expected = |g: &SlotGrant| 2 + usize::from(g.v6);
    let mut fds = fds.into_iter();
    if fds.len() != 3 + grants.iter().map(expected).sum::<usize>() {
        return Err(Error::DescriptorsLost);
    }
    let mut next = || fds.next().ok_or(Error::DescriptorsLost);
    let parcel = Parcel::from_fds([next()?, next()?]);
    let credits = next()?;
    let credits = CreditPage::from_fd(credits).map_err(|e| Error::system("the credit page", e))?;
    let mut slots = Vec::with_capacity(grants.len());
    for grant in grants {
        slots.push(AttachedSlot {
            slot: grant.slot,
            sockets: (next()?, if grant.v6 { Some(next()?) } else { None }),
            counters: CounterPage::from_fd(next()?).map_err(|error| Error::CounterPage {
                slot: grant.slot,
                error,
            })?,
        });
    }
    Ok((parcel, credits, slots))
}
