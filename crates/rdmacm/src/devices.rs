//! Devices of ids: one open device for each link, which all ids of the process share.

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use ferroce_cm::ports::Host;
use ferroce_control::{Gid, LinkInfo, PerProcess};
use ferroce_device::transport::Pd;
use ferroce_device::{Device, list_links, start_thread};

use crate::address::host;
use crate::error::{Error, ErrorKind};
use crate::{iwarp, lock};

/// READs and atomics that a queue pair can serve or have outstanding, as with rxe.
pub const MAX_DEPTH: u8 = 128;

/// The open device of a link, with a protection domain for programs that have none.
#[derive(Debug, Clone)]
pub struct LinkDevice(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    index: u32,
    is_iwarp: bool,
    device: Arc<Device>,
    pd: OnceLock<Arc<Pd>>,
}

impl LinkDevice {
    /// Returns the index of the link.
    pub fn index(&self) -> u32 {
        self.0.index
    }

    /// Returns true if the link is of type siw.
    pub fn is_iwarp(&self) -> bool {
        self.0.is_iwarp
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<Device> {
        &self.0.device
    }

    /// Returns the protection domain that ids of this process share. It is allocated by the
    /// first call.
    pub fn pd(&self) -> &Arc<Pd> {
        self.0.pd.get_or_init(|| self.0.device.alloc_pd())
    }

    /// Returns the current state of the link.
    pub fn link(&self) -> Arc<LinkInfo> {
        self.0.device.link()
    }

    /// Waits until duplicate address detection of an address of the link ends.
    pub(crate) fn await_usable(&self, host: Host) -> Result<(), Error> {
        let link = self.link();
        match link.gids.iter().find(|gid| is_of(gid, host)) {
            Some(gid) => self.await_gid(gid),
            None => Ok(()),
        }
    }

    fn await_gid(&self, gid: &Gid) -> Result<(), Error> {
        let usable = self.0.device.await_usable(gid);
        usable.map_err(|error| Error::new(ErrorKind::AddressNotAvailable, error.to_string()))
    }
}

/// Devices of one process. A forked child has none: its parent goes on with those.
#[derive(Debug, Default)]
struct Devices {
    /// Never locked during a call to ferroced.
    opened: Mutex<Vec<LinkDevice>>,
    /// Locked by the thread that opens a device: each link is opened once.
    opening: Mutex<()>,
}

static DEVICES: PerProcess<Devices> = PerProcess::new();

/// Fails with [`ErrorKind::NoDevice`] unless there is a link, or was one earlier.
///
/// # Errors
/// [`ErrorKind::TimedOut`] if ferroced does not answer.
pub fn check_links() -> Result<(), Error> {
    static SEEN: AtomicBool = AtomicBool::new(false);
    if SEEN.load(Ordering::Relaxed) {
        return Ok(());
    }
    let links = match links() {
        // A stopped ferroced may have any number of links.
        Err(error) if error.kind() == ErrorKind::TimedOut => return Err(error),
        links => links.unwrap_or_default(),
    };
    if links.is_empty() {
        return Err(Error::new(
            ErrorKind::NoDevice,
            "there is no link; `ferroce link` shows them, `ferroce link add NAME type rxe netdev IF` adds one",
        ));
    }
    SEEN.store(true, Ordering::Relaxed);
    Ok(())
}

/// Opens the devices of all links and returns them. Links that cannot be opened are left out.
pub fn all() -> Result<Vec<LinkDevice>, Error> {
    check_links()?;
    let links = links()?;
    let opened = links.iter().filter_map(|link| find_or_open(link).ok());
    Ok(opened.collect())
}

/// Opens the devices that requests at a listener may need, because the thread that takes a
/// request must not wait for ferroced. Links that are added later are opened by
/// [`open_in_thread`].
///
/// # Errors
/// [`ErrorKind::TimedOut`] if ferroced does not answer. An address that no link has is no
/// error: a link may get it later.
pub(crate) fn open_for_listener(host: Host) -> Result<(), Error> {
    let opened = match host.ip.is_unspecified() {
        true => all().map(drop),
        false => by_address(host).map(drop),
    };
    match opened {
        Err(error) if error.kind() == ErrorKind::TimedOut => Err(error),
        _ => Ok(()),
    }
}

/// Returns the device of the link that has this address.
pub(crate) fn by_address(host: Host) -> Result<LinkDevice, Error> {
    let has = |link: &LinkInfo| has_address(link, host);
    let opened = {
        let opened = opened_devices();
        // As in the kernel, the link that was added first serves an address of two links.
        let having = opened.iter().filter(|device| has(&device.link()));
        having.min_by_key(|device| device.index()).cloned()
    };
    if let Some(device) = opened {
        return Ok(device);
    }
    let links = links()?;
    let link = links.iter().find(|link| has(link)).ok_or_else(|| {
        Error::new(
            ErrorKind::NoDevice,
            format!(
                "no link has the address {}; `ferroce gids` lists those that links have",
                host.ip
            ),
        )
    })?;
    find_or_open(link)
}

/// Returns true if the link has the address.
fn has_address(link: &LinkInfo, host: Host) -> bool {
    link.gids.iter().any(|gid| is_of(gid, host))
}

fn is_of(gid: &Gid, host: Host) -> bool {
    gid.address == host.ip && (host.scope == 0 || host.scope == gid.ifindex)
}

/// Waits for an address from which packets to `destination` can be sent, if duplicate address
/// detection of such an address has not ended. Returns false if there is none.
pub(crate) fn await_source(destination: SocketAddr) -> Result<bool, Error> {
    let to = host(destination);
    let fits = |gid: &&Gid| {
        let (IpAddr::V6(from), IpAddr::V6(to_ip)) = (gid.address, to.ip) else {
            return false;
        };
        let is_local = to_ip.is_unicast_link_local();
        let is_there = !is_local || gid.ifindex == to.scope;
        gid.tentative && from.is_unicast_link_local() == is_local && is_there
    };
    let links = links()?;
    let mut found = links.iter().flat_map(|link| {
        let gids = link.gids.iter().filter(fits);
        gids.map(move |gid| (link, gid))
    });
    match found.next() {
        Some((link, gid)) => find_or_open(link)?.await_gid(gid).map(|()| true),
        None => Ok(false),
    }
}

/// Returns true if a link of type siw has the address; with the wildcard, if there is one.
pub(crate) fn have_iwarp(host: Host) -> Result<bool, Error> {
    let serves = |device: &LinkDevice| {
        device.is_iwarp() && (host.ip.is_unspecified() || has_address(&device.link(), host))
    };
    // perftest tells its client the port just before it listens: do not ask ferroced if the
    // answer is known.
    if opened_devices().iter().any(serves) {
        return Ok(true);
    }
    let links = links()?;
    let mut links = links.iter().filter(|link| link.is_iwarp());
    Ok(links.any(|link| host.ip.is_unspecified() || has_address(link, host)))
}

/// Returns the device of the link of type siw that has the address.
pub(crate) fn iwarp_of(host: Host) -> Option<LinkDevice> {
    let serves = |link: &LinkInfo| link.is_iwarp() && has_address(link, host);
    let opened = {
        let opened = opened_devices();
        let mut opened = opened.iter();
        opened.find(|device| serves(&device.link())).cloned()
    };
    opened.or_else(|| {
        let links = links().ok()?;
        find_or_open(links.iter().find(|link| serves(link))?).ok()
    })
}

/// Returns an address of this IP version that a link has.
pub(crate) fn first_address(v4: bool) -> Result<Host, Error> {
    let links = links()?;
    let mut gids = links.iter().flat_map(|link| &link.gids);
    let gid = gids.find(|gid| gid.address.is_ipv4() == v4);
    gid.map(|gid| Host::new(gid.address)).ok_or_else(|| {
        let version = if v4 { "IPv4" } else { "IPv6" };
        Error::new(
            ErrorKind::NoDevice,
            format!("no link has an {version} address"),
        )
    })
}

/// Returns the device of the link with this index if it is open. Never calls ferroced.
pub(crate) fn opened(index: u32) -> Result<LinkDevice, Error> {
    let opened = opened_devices();
    let device = opened.iter().find(|device| device.index() == index);
    device.cloned().ok_or_else(link_is_gone)
}

/// Opens the device of the link with this index in a thread, which then calls `report`.
pub(crate) fn open_in_thread(
    index: u32,
    report: impl FnOnce(Result<(), Error>) + Send + 'static,
) -> std::io::Result<()> {
    let work = move || {
        let opened = by_index(index).map(drop);
        report(opened);
    };
    // The client's thread must not wait for ferroced.
    start_thread("ferroce-open".into(), work).map(drop)
}

/// Returns the device of the link with this index.
fn by_index(index: u32) -> Result<LinkDevice, Error> {
    if let Ok(device) = opened(index) {
        return Ok(device);
    }
    let links = links()?;
    let link = links.iter().find(|link| link.index == index);
    find_or_open(link.ok_or_else(link_is_gone)?)
}

fn link_is_gone() -> Error {
    Error::new(ErrorKind::NoDevice, "the link is gone")
}

fn find_or_open(link: &LinkInfo) -> Result<LinkDevice, Error> {
    let index = link.index;
    let _opening = lock(&DEVICES.get().opening);
    if let Ok(device) = opened(index) {
        return Ok(device);
    }
    let device = Device::open(&link.name)?;
    // Threads that take requests create queue pairs, and must not wait for ferroced.
    device.attach()?;
    if link.is_iwarp() {
        device.list_streams_by(move || iwarp::streams_on(index));
    }
    let device = LinkDevice(Arc::new(Opened {
        index,
        is_iwarp: link.is_iwarp(),
        device,
        pd: OnceLock::new(),
    }));
    opened_devices().push(device.clone());
    Ok(device)
}

/// Lists all links.
fn links() -> Result<Vec<LinkInfo>, Error> {
    list_links().map_err(|error| {
        tracing::warn!("no devices for connections: {error}");
        error.into()
    })
}

/// Forgets the device of a removed link: a new link of the same index is another one.
pub(crate) fn forget(index: u32) {
    let removed = |device: &mut LinkDevice| device.index() == index;
    let closing: Vec<LinkDevice> = opened_devices().extract_if(.., removed).collect();
    // Closing a device joins its threads: not while the list is locked.
    drop(closing);
}

fn opened_devices() -> MutexGuard<'static, Vec<LinkDevice>> {
    lock(&DEVICES.get().opened)
}
