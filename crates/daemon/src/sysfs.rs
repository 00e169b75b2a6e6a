//! What sysfs and /dev would say about the links, if they were the kernel's.
//!
//! Some programs read `/sys/class/infiniband/...` or test for
//! `/dev/infiniband/uverbsN` themselves, past libibverbs. ferroced keeps files for
//! them in its runtime directory, and the preload library of `ferroce run` leads those
//! paths there. Contents are as the kernel writes them for rxe, but for one thing: a GID
//! table has 1024 files in the kernel; here they end with the last GID.
//!
//! Reading a file of sysfs asks the driver, but these are plain files. So the preload
//! library, before it leads somebody to counters, connects to a socket beside the
//! files: ferroced brings them up to date and closes the connection. Who does not come
//! by that way sees counters as they were when somebody did, or a link changed.
//!
//! This file decides what there is; [`tree`] writes it.

pub(crate) mod tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ferroce_control::{CounterValues, Gid, LinkInfo, PhysicalState, PortState};
use ferroce_transport::Counter;

/// A file, by its path below the root of the tree.
pub(crate) type Files = BTreeMap<String, Node>;

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    /// A file with this text.
    File(String),
    /// A symbolic link to this path.
    Link(String),
}

/// A link, and what else its files say.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) link: &'a LinkInfo,
    pub(crate) counters: CounterValues,
    /// The hardware of its netdev, where that is known.
    pub(crate) hardware: Option<PathBuf>,
}

/// The version of the verbs interface between library and kernel.
const VERBS_VERSION: u32 = 6;
/// The version of the interface of rxe.
const DRIVER_VERSION: u32 = 2;
/// The numbers of the first verbs device.
const MAJOR: u32 = 231;
const FIRST_MINOR: u32 = 192;

/// All files of these links, on a machine with that many CPUs.
pub(crate) fn files<'a>(subjects: impl IntoIterator<Item = Subject<'a>>, cpus: usize) -> Files {
    let mut files = Files::new();
    let version = Node::File(format!("{VERBS_VERSION}\n"));
    files.insert("sys/class/infiniband_verbs/abi_version".into(), version);
    for subject in subjects {
        let link = subject.link;
        let mut class = Folder::new(&mut files, format!("sys/class/infiniband/{}", link.name));
        describe(&mut class, link);
        place(&mut class, &subject, cpus);
        port(&mut class.inside("ports/1"), link, &subject.counters);
        verbs(&mut files, link);
        let path = format!("sys/kernel/config/rdma_cm/{}/ports/1", link.name);
        let mut defaults = Folder::new(&mut files, path);
        defaults.put("default_roce_mode", "RoCE v2");
        defaults.put("default_roce_tos", 0);
    }
    files
}

/// A folder to put files in.
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

    /// A file of one line.
    fn put(&mut self, name: impl AsRef<str>, line: impl std::fmt::Display) {
        let path = format!("{}/{}", self.path, name.as_ref());
        self.files.insert(path, Node::File(format!("{line}\n")));
    }

    fn link(&mut self, name: &str, target: String) {
        let path = format!("{}/{name}", self.path);
        self.files.insert(path, Node::Link(target));
    }
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
    folder.put("node_desc", &link.kind);
    folder.put("fw_ver", env!("CARGO_PKG_VERSION"));
    folder.put("parent", &link.netdev);
}

/// Where in the machine the device is: with its netdev.
fn place(folder: &mut Folder, subject: &Subject, cpus: usize) {
    if let Some(hardware) = &subject.hardware {
        return folder.link("device", hardware.display().to_string());
    }
    let link = subject.link;
    let mut device = folder.inside("device");
    device.put("numa_node", -1);
    device.put("local_cpus", cpu_mask(cpus));
    device.put("local_cpulist", format!("0-{}", cpus.saturating_sub(1)));
    let mut netdev = device.inside(&format!("net/{}", link.netdev));
    let address: Vec<String> = link.mac.iter().map(|byte| format!("{byte:02x}")).collect();
    netdev.put("address", address.join(":"));
    netdev.put("ifindex", link.ifindex);
    netdev.put("mtu", link.netdev_mtu);
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
    // As the verbs say it: see `LinkInfo::lid`.
    folder.put("lid", format!("{:#x}", link.lid()));
    folder.put("lid_mask_count", 0);
    folder.put("sm_lid", "0x0");
    folder.put("sm_sl", 0);
    folder.put("cap_mask", "0x00010000");
    folder.put("pkeys/0", "0xffff");
    gids(folder, link);
    count(folder, counters);
}

fn gids(folder: &mut Folder, link: &LinkInfo) {
    let end = link.gids.iter().map(|gid| gid.index + 1).max().unwrap_or(0);
    for index in 0..end {
        let gid = link.gid(index);
        let raw = gid.map_or([0; 16], Gid::raw);
        folder.put(format!("gids/{index}"), colons(&raw));
        // Of an empty place the kernel has files that cannot be read.
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
    // IBTA counts words of four bytes.
    folder.put("port_xmit_data", value(Counter::SentBytes) / 4);
    folder.put("port_rcv_data", value(Counter::RcvdBytes) / 4);
    folder.put("port_xmit_packets", value(Counter::SentPkts));
    folder.put("port_rcv_packets", value(Counter::RcvdPkts));
    folder.put("link_downed", value(Counter::LinkDowned));
}

/// The verbs device: its class, and its file in /dev. Programs only look whether that
/// is a character device that they may open, which the null device always is.
fn verbs(files: &mut Files, link: &LinkInfo) {
    let name = format!("uverbs{}", link.index);
    let mut class = Folder::new(files, format!("sys/class/infiniband_verbs/{name}"));
    class.put("ibdev", &link.name);
    class.put("abi_version", DRIVER_VERSION);
    class.put("dev", format!("{MAJOR}:{}", FIRST_MINOR + link.index));
    class.link("device", format!("../../infiniband/{}/device", link.name));
    Folder::new(files, "dev/infiniband".into()).link(&name, "/dev/null".into());
}

/// Lanes, and the speed of each, for a netdev's Mb/s.
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

/// Groups of two bytes with colons between them.
fn colons(bytes: &[u8]) -> String {
    let groups = bytes.as_chunks::<2>().0.iter();
    let groups: Vec<String> = groups.map(|[a, b]| format!("{a:02x}{b:02x}")).collect();
    groups.join(":")
}

/// One bit for each CPU: groups of 32 with commas between them, the first CPU last.
fn cpu_mask(cpus: usize) -> String {
    let group = |group: usize| match cpus - group * 32 {
        bits @ 1..32 => (1u32 << bits) - 1,
        _ => u32::MAX,
    };
    let words = cpus.div_ceil(32);
    let groups: Vec<String> = (0..words)
        .rev()
        .map(|g| match (g + 1 == words, cpus % 32) {
            // The kernel writes as many digits as there are CPUs.
            (true, bits @ 1..32) => format!("{:0width$x}", group(g), width = bits.div_ceil(4)),
            _ => format!("{:08x}", group(g)),
        })
        .collect();
    groups.join(",")
}

/// The hardware of a link's netdev: where sysfs has it, if it is this very netdev and
/// not one of the same name in another network namespace.
pub(crate) fn hardware(link: &LinkInfo) -> Option<PathBuf> {
    let netdev = Path::new("/sys/class/net").join(&link.netdev);
    let index = std::fs::read_to_string(netdev.join("ifindex")).ok()?;
    if index.trim() != link.ifindex.to_string() {
        return None;
    }
    let device = std::fs::canonicalize(netdev.join("device")).ok()?;
    device
        .join("net")
        .join(&link.netdev)
        .exists()
        .then_some(device)
}

/// How many CPUs the machine has.
pub(crate) fn cpus() -> usize {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible");
    let last = possible.ok().and_then(|text| {
        let last = text.trim().rsplit(['-', ',']).next()?;
        last.parse::<usize>().ok()
    });
    last.map_or(1, |last| last + 1)
}

#[cfg(test)]
mod tests;
