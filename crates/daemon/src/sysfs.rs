//! The mirror of sysfs and /dev: files about the links, as the kernel has them for rxe.
//!
//! Some programs read `/sys/class/infiniband/...` or look for `/dev/infiniband/uverbsN`
//! without libibverbs. ferroced keeps these files in its runtime directory, and the preload
//! library of `ferroce run` redirects the paths there. The contents are those of the kernel
//! for rxe, with one difference: the kernel's GID table has 1024 files, and this one ends with
//! the last GID. As in the kernel, the entries of `/sys/class` are symbolic links to
//! `/sys/devices/virtual`, and there is no link `device`: Soft-RoCE has no hardware.
//!
//! In sysfs the driver produces the contents at each read, but these are plain files. So
//! the preload library connects to a socket beside the files before a program opens a
//! counter. ferroced updates the files and closes the connection. Other readers see the
//! counters of the last such update, or of the last change of a link.
//!
//! This module produces the contents; [`tree`] writes the files.

pub(crate) mod tree;

use std::collections::BTreeMap;

use ferroce_control::{CounterValues, Gid, LinkInfo, PhysicalState, PortState};
use ferroce_roce::Counter;

/// The files, by their paths below the root of the tree.
pub(crate) type Files = BTreeMap<String, Node>;

/// The file at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    /// A file with this text.
    File(String),
    /// A symbolic link to this path.
    Link(String),
}

/// A link with its counters.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) link: &'a LinkInfo,
    pub(crate) counters: CounterValues,
}

/// The version of the verbs interface between library and kernel.
const VERBS_VERSION: u32 = 6;
/// The version of the interface of rxe.
const DRIVER_VERSION: u32 = 2;
/// The numbers of the first verbs device.
const MAJOR: u32 = 231;
const FIRST_MINOR: u32 = 192;

/// Target of the device files. Programs only check for a character device that they may
/// open, which the null device always is.
const NO_DEVICE: &str = "/dev/null";

/// Returns all files of these links.
pub(crate) fn files<'a>(subjects: impl IntoIterator<Item = Subject<'a>>) -> Files {
    let mut files = Files::new();
    let version = Node::File(format!("{VERBS_VERSION}\n"));
    files.insert("sys/class/infiniband_verbs/abi_version".into(), version);
    Folder::new(&mut files, "dev/infiniband".into()).link("rdma_cm", NO_DEVICE.into());
    for subject in subjects {
        let link = subject.link;
        let mut device = device(&mut files, "infiniband", &link.name);
        describe(&mut device, link);
        port(&mut device.inside("ports/1"), link, &subject.counters);
        verbs(&mut files, link);
        let path = format!("sys/kernel/config/rdma_cm/{}/ports/1", link.name);
        let mut defaults = Folder::new(&mut files, path);
        defaults.put("default_roce_mode", "RoCE v2");
        defaults.put("default_roce_tos", 0);
    }
    files
}

/// A directory of the tree.
struct Folder<'a> {
    files: &'a mut Files,
    path: String,
}

impl<'a> Folder<'a> {
    fn new(files: &'a mut Files, path: String) -> Folder<'a> {
        Folder { files, path }
    }

    fn inside(&mut self, name: &str) -> Folder<'_> {
        Folder {
            path: format!("{}/{name}", self.path),
            files: self.files,
        }
    }

    /// Adds a file with one line.
    fn put(&mut self, name: impl AsRef<str>, line: impl std::fmt::Display) {
        let path = format!("{}/{}", self.path, name.as_ref());
        self.files.insert(path, Node::File(format!("{line}\n")));
    }

    fn link(&mut self, name: &str, target: String) {
        let path = format!("{}/{name}", self.path);
        self.files.insert(path, Node::Link(target));
    }
}

/// Adds a device of a class: its directory, the link to it in the directory of the class,
/// and the files that every device has. A device without a bus cannot be suspended.
fn device<'a>(files: &'a mut Files, class: &str, name: &str) -> Folder<'a> {
    let link = format!("../../devices/virtual/{class}/{name}");
    Folder::new(files, format!("sys/class/{class}")).link(name, link);
    let mut device = Folder::new(files, format!("sys/devices/virtual/{class}/{name}"));
    device.link("subsystem", format!("../../../../class/{class}"));
    let mut power = device.inside("power");
    power.put("control", "auto");
    power.put("runtime_active_time", 0);
    power.put("runtime_status", "unsupported");
    power.put("runtime_suspended_time", 0);
    device
}

fn describe(folder: &mut Folder, link: &LinkInfo) {
    let guid = colons(&link.guid());
    let node_type = match link.kind.as_str() {
        "siw" => "4: RNIC",
        _ => "1: CA",
    };
    folder.put("node_type", node_type);
    folder.put("node_guid", &guid);
    folder.put("sys_image_guid", &guid);
    folder.put(
        "node_desc",
        match link.is_iwarp() {
            true => "Software iWARP stack",
            false => &link.kind,
        },
    );
    folder.put("fw_ver", env!("CARGO_PKG_VERSION"));
    folder.put("parent", &link.netdev);
    folder.put("uevent", format!("NAME={}", link.name));
}

fn port(folder: &mut Folder, link: &LinkInfo, counters: &CounterValues) {
    let state = match link.state() {
        PortState::Down => "1: DOWN",
        PortState::Active => "4: ACTIVE",
    };
    let physical = match link.physical_state() {
        PhysicalState::Polling => "2: Polling",
        PhysicalState::Disabled => "3: Disabled",
        PhysicalState::LinkUp => "5: LinkUp",
    };
    folder.put("state", state);
    folder.put("phys_state", physical);
    folder.put("rate", rate(link.speed_mbps.unwrap_or(0)));
    folder.put("link_layer", "Ethernet");
    // The same as in verbs: see `LinkInfo::lid`.
    folder.put("lid", format!("{:#x}", link.lid()));
    folder.put("lid_mask_count", 0);
    folder.put("sm_lid", "0x0");
    folder.put("sm_sl", 0);
    let capabilities = match link.is_iwarp() {
        true => "0x00090000",
        false => "0x00010000",
    };
    folder.put("cap_mask", capabilities);
    if !link.is_iwarp() {
        folder.put("pkeys/0", "0xffff");
    }
    gids(folder, link);
    count(folder, counters);
}

fn gids(folder: &mut Folder, link: &LinkInfo) {
    if link.is_iwarp() {
        folder.put("gids/0", colons(&link.mac_gid()));
        folder.put("gid_attrs/types/0", "IB/RoCE v1");
        folder.put("gid_attrs/ndevs/0", &link.netdev);
        return;
    }
    let end = link.gids.iter().map(|gid| gid.index + 1).max().unwrap_or(0);
    for index in 0..end {
        let gid = link.gid(index);
        let raw = gid.map_or([0; 16], Gid::raw);
        folder.put(format!("gids/{index}"), colons(&raw));
        // For an empty entry the kernel has files that cannot be read.
        if let Some(gid) = gid {
            folder.put(format!("gid_attrs/types/{index}"), "RoCE v2");
            folder.put(format!("gid_attrs/ndevs/{index}"), &gid.netdev);
        }
    }
}

fn count(folder: &mut Folder, counters: &CounterValues) {
    for (name, value) in counters.named() {
        folder.put(format!("hw_counters/{name}"), value);
    }
    let value = |counter: Counter| counters.0[counter as usize];
    let mut folder = folder.inside("counters");
    // IBTA's counters are in words of four bytes.
    folder.put("port_xmit_data", value(Counter::SentBytes) / 4);
    folder.put("port_rcv_data", value(Counter::RcvdBytes) / 4);
    folder.put("port_xmit_packets", value(Counter::SentPkts));
    folder.put("port_rcv_packets", value(Counter::RcvdPkts));
    folder.put("link_downed", value(Counter::LinkDowned));
}

/// Adds the verbs device: its class, and its file in /dev.
fn verbs(files: &mut Files, link: &LinkInfo) {
    let name = format!("uverbs{}", link.index);
    let minor = FIRST_MINOR + link.index;
    let mut class = device(files, "infiniband_verbs", &name);
    class.put("ibdev", &link.name);
    class.put("abi_version", DRIVER_VERSION);
    class.put("dev", format!("{MAJOR}:{minor}"));
    let event = format!("MAJOR={MAJOR}\nMINOR={minor}\nDEVNAME=infiniband/{name}\nDEVMODE=0666");
    class.put("uevent", event);
    Folder::new(files, "dev/infiniband".into()).link(&name, NO_DEVICE.into());
}

/// Returns the rate for a netdev's speed in Mb/s: lanes, and the speed of each.
fn rate(mbps: u32) -> &'static str {
    match mbps {
        0..=1_000 => "2.5 Gb/sec (1X SDR)",
        1_001..=10_000 => "10 Gb/sec (1X FDR10)",
        10_001..=20_000 => "20 Gb/sec (4X DDR)",
        20_001..=25_000 => "25 Gb/sec (1X EDR)",
        25_001..=40_000 => "40 Gb/sec (4X FDR10)",
        40_001..=50_000 => "50 Gb/sec (2X EDR)",
        50_001..=100_000 => "100 Gb/sec (4X EDR)",
        100_001..=200_000 => "200 Gb/sec (4X HDR)",
        200_001.. => "400 Gb/sec (4X NDR)",
    }
}

/// Formats groups of two bytes with colons between them.
fn colons(bytes: &[u8]) -> String {
    let groups = bytes.as_chunks::<2>().0.iter();
    let groups: Vec<String> = groups.map(|[a, b]| format!("{a:02x}{b:02x}")).collect();
    groups.join(":")
}

#[cfg(test)]
mod tests;
