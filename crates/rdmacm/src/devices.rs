//! Devices of ids: one open device for each link, which all ids of the process share.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use ferroce_cm::ports::Host;
use ferroce_control::LinkInfo;
use ferroce_device::transport::Pd;
use ferroce_device::{Device, list_links};

use crate::client::ControlClient;
use crate::error::{Error, ErrorKind};
use crate::lock;

/// READs and atomics that a queue pair can serve or have outstanding, as with rxe.
pub const MAX_DEPTH: u8 = 128;

/// The open device of a link, with a protection domain for programs that have none.
#[derive(Debug, Clone)]
pub struct LinkDevice(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    index: u32,
    device: Arc<Device>,
    pd: OnceLock<Arc<Pd>>,
}

impl LinkDevice {
    /// Returns the index of the link.
    pub fn index(&self) -> u32 {
        self.0.index
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
    pub fn link(&self) -> LinkInfo {
        self.0.device.link()
    }
}

/// Devices of one process.
#[derive(Debug)]
struct Devices {
    /// Process that opened them: threads and sockets do not survive a fork.
    process: u32,
    opened: Vec<LinkDevice>,
}

static DEVICES: Mutex<Devices> = Mutex::new(Devices {
    process: 0,
    opened: Vec::new(),
});

/// Fails with [`ErrorKind::NoDevice`] unless there is a link, or was one earlier.
///
/// # Errors
/// [`ErrorKind::TimedOut`] if ferroced does not answer.
pub fn check_links() -> Result<(), Error> {
    static SEEN: AtomicBool = AtomicBool::new(false);
    if SEEN.load(Ordering::Relaxed) {
        return Ok(());
    }
    let links = match links(&devices()) {
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
    let mut devices = devices();
    let links = links(&devices)?;
    let opened = links
        .iter()
        .filter_map(|link| find_or_open(&mut devices, link).ok());
    Ok(opened.collect())
}

/// Returns the device of the link that has this address.
pub(crate) fn by_address(host: Host) -> Result<LinkDevice, Error> {
    let has = |link: &LinkInfo| {
        link.gids
            .iter()
            .any(|gid| gid.address == host.ip && (host.scope == 0 || host.scope == gid.ifindex))
    };
    let mut devices = devices();
    if let Some(device) = devices.opened.iter().find(|device| has(&device.link())) {
        return Ok(device.clone());
    }
    let links = links(&devices)?;
    let link = links.iter().find(|link| has(link)).ok_or_else(|| {
        Error::new(
            ErrorKind::NoDevice,
            format!(
                "no link has the address {}; `ferroce gids` lists those that links have",
                host.ip
            ),
        )
    })?;
    find_or_open(&mut devices, link)
}

/// Returns an address of this IP version that a link has.
pub(crate) fn first_address(v4: bool) -> Result<Host, Error> {
    let links = links(&devices())?;
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

/// Returns the device of the link with this index.
pub(crate) fn by_index(index: u32) -> Result<LinkDevice, Error> {
    let mut devices = devices();
    if let Some(device) = devices.opened.iter().find(|device| device.index() == index) {
        return Ok(device.clone());
    }
    let links = links(&devices)?;
    let link = links.iter().find(|link| link.index == index);
    let link = link.ok_or_else(|| Error::new(ErrorKind::NoDevice, "the link is gone"))?;
    find_or_open(&mut devices, link)
}

fn find_or_open(devices: &mut Devices, link: &LinkInfo) -> Result<LinkDevice, Error> {
    let index = link.index;
    if let Some(device) = devices.opened.iter().find(|device| device.index() == index) {
        return Ok(device.clone());
    }
    let device = LinkDevice(Arc::new(Opened {
        index,
        device: Device::open(&link.name)?,
        pd: OnceLock::new(),
    }));
    devices.opened.push(device.clone());
    Ok(device)
}

/// Lists all links. The lock on the devices limits each process to one list request at a
/// time: all its threads may start at once, and each request takes a connection to ferroced.
fn links(_one_at_a_time: &Devices) -> Result<Vec<LinkInfo>, Error> {
    let mut links = list_links();
    let ended =
        |error: &ferroce_control::Error| !matches!(error, ferroce_control::Error::Timeout { .. });
    if let (Err(error), Some(client)) = (&links, ControlClient::current())
        && ended(error)
    {
        tracing::debug!("ferroced ended while it listed links: {error}");
        client.await_ferroced()?;
        links = list_links();
    }
    links.map_err(|error| {
        tracing::warn!("no devices for connections: {error}");
        error.into()
    })
}

/// Forgets the device of a removed link: a new link of the same index is another one.
pub(crate) fn forget(index: u32) {
    let removed = |device: &mut LinkDevice| device.index() == index;
    let closing: Vec<LinkDevice> = devices().opened.extract_if(.., removed).collect();
    // Closing a device joins its threads: not while the list is locked.
    drop(closing);
}

fn devices() -> MutexGuard<'static, Devices> {
    let mut devices = lock(&DEVICES);
    let process = std::process::id();
    if devices.process != process {
        devices.process = process;
        // They belong to the parent, which goes on with them.
        std::mem::forget(std::mem::take(&mut devices.opened));
    }
    devices
}
