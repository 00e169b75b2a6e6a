//! Configuration of the netdevs in the current network namespace, as `ip` does it. All
//! functions panic when the kernel refuses.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use crate::deadline;
use crate::netlink::Body;

const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_F_NODAD: u8 = 0x02;
const CREATE: i32 = libc::NLM_F_CREATE | libc::NLM_F_EXCL;

/// Returns the index of a netdev.
///
/// # Panics
/// If there is no such netdev.
pub fn index(name: &str) -> u32 {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )
    .expect("a socket");
    rustix::net::netdevice::name_to_index(&socket, name)
        .unwrap_or_else(|error| panic!("netdev {name}: {error}"))
}

/// Adds a veth pair; both netdevs are down.
pub fn add_veth(name: &str, peer: &str) {
    try_add_veth(name, peer).unwrap_or_else(|error| panic!("veth {name}: {error}"));
}

fn try_add_veth(name: &str, peer: &str) -> io::Result<()> {
    let other = Body::new(&link_header(0, 0, 0)).text(libc::IFLA_IFNAME, peer);
    let data = Body::default().nest(VETH_INFO_PEER, other);
    add_link("veth", Body::new(&link_header(0, 0, 0)), name, data)
}

/// Adds a macvlan on top of another netdev. Returns false if the kernel does not support it.
pub fn add_macvlan(name: &str, lower: &str) -> bool {
    let body = Body::new(&link_header(0, 0, 0));
    let body = body.attribute(libc::IFLA_LINK, &index(lower).to_ne_bytes());
    add_link("macvlan", body, name, Body::default()).is_ok()
}

/// Adds a bridge. Returns false if the kernel does not support it.
pub fn add_bridge(name: &str) -> bool {
    let body = Body::new(&link_header(0, 0, 0));
    add_link("bridge", body, name, Body::default()).is_ok()
}

/// Makes a netdev a port of a bridge.
pub fn set_master(name: &str, master: &str) {
    let master = index(master).to_ne_bytes();
    change(name, |body| body.attribute(libc::IFLA_MASTER, &master));
}

/// Sets a netdev up.
pub fn set_up(name: &str) {
    set_flags(name, libc::IFF_UP);
}

/// Sets a netdev down.
pub fn set_down(name: &str) {
    set_flags(name, 0);
}

/// Changes the MTU.
pub fn set_mtu(name: &str, mtu: u32) {
    change(name, |body| {
        body.attribute(libc::IFLA_MTU, &mtu.to_ne_bytes())
    });
}

/// Changes the MAC address.
pub fn set_mac(name: &str, mac: [u8; 6]) {
    change(name, |body| body.attribute(libc::IFLA_ADDRESS, &mac));
}

/// Limits a netdev's rate to `bytes_per_second`, as `tc qdisc add dev NAME root tbf` does.
/// It queues up to `queue` bytes and drops the rest.
pub fn add_bottleneck(name: &str, bytes_per_second: u32, queue: u32) {
    const TCA_KIND: u16 = 1;
    const TCA_OPTIONS: u16 = 2;
    const TCA_TBF_PARMS: u16 = 1;
    const TCA_TBF_BURST: u16 = 6;
    const TC_H_ROOT: u32 = u32::MAX;
    const TC_LINKLAYER_ETHERNET: u8 = 1;
    const BURST: u32 = 16 << 10;
    // `struct tcmsg`: family, netdev, handle, parent, info.
    let mut header = vec![0; 4];
    for field in [index(name), 0, TC_H_ROOT, 0] {
        header.extend(field.to_ne_bytes());
    }
    // `struct tc_tbf_qopt`: rate, no peak rate, limit. TCA_TBF_BURST sets the buffer.
    let mut parameters = vec![0, TC_LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0];
    parameters.extend(bytes_per_second.to_ne_bytes());
    parameters.extend([0; 12]);
    for field in [queue, 0, 0] {
        parameters.extend(field.to_ne_bytes());
    }
    let options = Body::default()
        .attribute(TCA_TBF_PARMS, &parameters)
        .attribute(TCA_TBF_BURST, &BURST.to_ne_bytes());
    let result = Body::new(&header)
        .text(TCA_KIND, "tbf")
        .nest(TCA_OPTIONS, options)
        .send(libc::RTM_NEWQDISC, CREATE);
    result.unwrap_or_else(|error| panic!("bottleneck at {name}: {error}"));
}

/// Moves a netdev to the network namespace of a descriptor.
pub fn move_to(name: &str, namespace: impl std::os::fd::AsFd) {
    use std::os::fd::AsRawFd;
    let fd = namespace.as_fd().as_raw_fd().to_ne_bytes();
    change(name, |body| body.attribute(IFLA_NET_NS_FD, &fd));
}

/// Deletes a netdev.
pub fn delete(name: &str) {
    let body = Body::new(&link_header(index(name), 0, 0));
    let result = body.send(libc::RTM_DELLINK, 0);
    result.unwrap_or_else(|error| panic!("delete {name}: {error}"));
}

/// Adds an address, `ADDRESS/PREFIX`, which is usable at once: duplicate address
/// detection is off.
pub fn add_address(name: &str, address: &str) {
    let result = address_body(name, address).send(libc::RTM_NEWADDR, CREATE);
    result.unwrap_or_else(|error| panic!("add {address} to {name}: {error}"));
}

/// Deletes an address.
pub fn delete_address(name: &str, address: &str) {
    let result = address_body(name, address).send(libc::RTM_DELADDR, 0);
    result.unwrap_or_else(|error| panic!("delete {address} from {name}: {error}"));
}

/// Waits until a netdev has a link-local address and duplicate address detection is done.
/// The kernel assigns it some time after both ends of a veth pair are up. Before that,
/// packets cannot be sent from it.
pub fn await_link_local(name: &str) {
    const TENTATIVE: u32 = 0x40;
    deadline::until(
        "a link-local address after duplicate address detection",
        || link_local(name).is_some_and(|(_, flags)| flags & TENTATIVE == 0),
    );
}

/// Waits until a netdev has a link-local address, which may be in duplicate address detection.
/// Returns the address.
///
/// # Panics
/// If the address is gone.
pub fn await_tentative_link_local(name: &str) -> Ipv6Addr {
    deadline::until("a link-local address", || link_local(name).is_some());
    link_local(name).expect("a link-local address").0
}

/// Returns a netdev's link-local address with its flags, if it has one.
fn link_local(name: &str) -> Option<(Ipv6Addr, u32)> {
    let table = std::fs::read_to_string("/proc/thread-self/net/if_inet6").ok()?;
    let mut lines = table.lines().filter(|line| line.starts_with("fe80"));
    let line = lines.find(|line| line.trim_end().ends_with(name))?;
    let mut words = line.split_whitespace();
    let address = u128::from_str_radix(words.next()?, 16).ok()?;
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    Some((address.into(), flags))
}

/// Makes duplicate address detection of a netdev last for as many seconds, and up to one more.
pub fn set_detection_time(name: &str, seconds: u32) {
    set_ipv6_option(name, "dad_transmits", seconds);
}

/// Makes the kernel give a netdev no link-local address.
pub fn disable_link_local(name: &str) {
    set_ipv6_option(name, "addr_gen_mode", 1);
}

fn set_ipv6_option(name: &str, option: &str, value: u32) {
    let path = format!("/proc/sys/net/ipv6/conf/{name}/{option}");
    let result = std::fs::write(&path, value.to_string());
    result.unwrap_or_else(|error| panic!("{path}: {error}"));
}

fn add_link(kind: &str, body: Body, name: &str, data: Body) -> io::Result<()> {
    let info = Body::default()
        .text(IFLA_INFO_KIND, kind)
        .nest(IFLA_INFO_DATA, data);
    body.text(libc::IFLA_IFNAME, name)
        .nest(libc::IFLA_LINKINFO, info)
        .send(libc::RTM_NEWLINK, CREATE)
}

fn set_flags(name: &str, flags: libc::c_int) {
    let body = Body::new(&link_header(index(name), flags, libc::IFF_UP));
    let result = body.send(libc::RTM_NEWLINK, 0);
    result.unwrap_or_else(|error| panic!("flags of {name}: {error}"));
}

fn change(name: &str, with: impl FnOnce(Body) -> Body) {
    let body = with(Body::new(&link_header(index(name), 0, 0)));
    let result = body.send(libc::RTM_NEWLINK, 0);
    result.unwrap_or_else(|error| panic!("change of {name}: {error}"));
}

/// Builds a `struct ifinfomsg`.
fn link_header(index: u32, flags: libc::c_int, change: libc::c_int) -> Vec<u8> {
    let mut header = vec![0; 4];
    header.extend(index.to_ne_bytes());
    header.extend(flags.to_ne_bytes());
    header.extend(change.to_ne_bytes());
    header
}

/// Builds a `struct ifaddrmsg` and the address attributes.
fn address_body(name: &str, address: &str) -> Body {
    let (ip, prefix) = address.split_once('/').expect("ADDRESS/PREFIX");
    let prefix: u8 = prefix.parse().expect("a prefix length");
    let (family, bytes) = match ip.parse().expect("an address") {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let mut header = vec![family as u8, prefix, IFA_F_NODAD, 0];
    header.extend(index(name).to_ne_bytes());
    Body::new(&header)
        .attribute(libc::IFA_LOCAL, &bytes)
        .attribute(libc::IFA_ADDRESS, &bytes)
}
