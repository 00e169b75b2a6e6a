//! Address handles, including those that are made from a received datagram.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ferroce_device::LinkInfo;
use ferroce_device::transport::AddressHandle;

use crate::arguments::put;
use crate::context::{context, context_of};
use crate::convert;
use crate::errno::{errno_of, minus_one, null, refuse};
use crate::ffi::{
    IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_grh, ibv_pd, ibv_wc, zeroed,
};
use crate::iwarp::check_roce;
use crate::object::{Object, argument, free, into_c, object};
use crate::pd::{PdObject, PdUse};
use crate::provoke::provoke;
use crate::strict::connect::check_peer;

/// `ibv_ah`
#[repr(C)]
pub(crate) struct AhObject {
    c: ibv_ah,
    pub(crate) ah: Arc<AddressHandle>,
    _domain: PdUse,
}

// SAFETY: `repr(C)`, and the C structure comes first.
unsafe impl Object for AhObject {
    type C = ibv_ah;
}

/// `ibv_create_ah`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    provoke!("ibv_create_ah" => null);
    let object = object!(pd as PdObject, "ibv_create_ah: the protection domain is NULL" => null);
    let attr = argument!(attr, "ibv_create_ah: the attributes are NULL" => null);
    if let Err(errno) = check_roce(object.device(), "ibv_create_ah", "address handles") {
        return null(errno);
    }
    if attr.port_num != 1 {
        let why = format_args!(
            "address handle for port {}: the device has port 1 only",
            attr.port_num
        );
        return null(refuse(libc::EINVAL, why));
    }
    // SAFETY: a context is open as long as it has domains.
    let settings = unsafe { context_of(object.context()) }.settings;
    if let Err(errno) = check_peer(&settings, object.device(), "ibv_create_ah", attr) {
        return null(errno);
    }
    let way = match convert::ah_attr(attr, object.device()) {
        Ok(way) => way,
        Err(errno) => return null(errno),
    };
    match object.device().create_ah(object.pd(), &way) {
        Err(error) => null(errno_of(&error)),
        Ok(ah) => into_c(Box::new(AhObject {
            c: ibv_ah {
                context: object.context(),
                pd,
                ..zeroed()
            },
            ah,
            _domain: object.hold(),
        })),
    }
}

/// `ibv_destroy_ah`. Posted work requests keep the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    if ah.is_null() {
        return refuse(libc::EINVAL, "ibv_destroy_ah: the address handle is NULL");
    }
    free!(ah as AhObject);
    0
}

/// `ibv_init_ah_from_wc`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    ah_attr: *mut ibv_ah_attr,
) -> c_int {
    let owner = context!(context, "ibv_init_ah_from_wc: the context is NULL" => minus_one);
    let wc = argument!(wc, "ibv_init_ah_from_wc: the completion is NULL" => minus_one);
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num,
        ..zeroed()
    };
    if wc.wc_flags & IBV_WC_GRH != 0 {
        // SAFETY: the program's header has the 40 bytes of a GRH, or is NULL.
        let Some(header) = (unsafe { grh.cast::<[u8; 40]>().as_ref() }) else {
            return minus_one(refuse(
                libc::EINVAL,
                "ibv_init_ah_from_wc: the completion has a GRH, but the header is NULL",
            ));
        };
        let link = owner.device.link();
        if let Err(errno) = Header::parse(header).fill(&link, &mut attr) {
            return minus_one(errno);
        }
    }
    put!(ah_attr, attr, "ibv_init_ah_from_wc: the attributes are NULL" => minus_one);
    0
}

/// `ibv_create_ah_from_wc`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    let object =
        object!(pd as PdObject, "ibv_create_ah_from_wc: the protection domain is NULL" => null);
    let mut attr: ibv_ah_attr = zeroed();
    // SAFETY: the context is that of a live domain. The program's completion and header are
    // live, or NULL, and `attr` is a local variable.
    unsafe {
        match ibv_init_ah_from_wc(object.context(), port_num, wc, grh, &raw mut attr) {
            0 => ibv_create_ah(pd, &raw mut attr),
            _ => core::ptr::null_mut(),
        }
    }
}

/// The 40 bytes in front of a received datagram: an IPv6 header, or 20 unused bytes and an
/// IPv4 header.
struct Header {
    source: IpAddr,
    destination: IpAddr,
    traffic_class: u8,
    flow_label: u32,
    hop_limit: u8,
}

impl Header {
    fn parse(bytes: &[u8; 40]) -> Header {
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        if is_ipv4(bytes) {
            return Header {
                source: IpAddr::V4(Ipv4Addr::from(four(32))),
                destination: IpAddr::V4(Ipv4Addr::from(four(36))),
                traffic_class: bytes[21],
                flow_label: 0,
                hop_limit: bytes[28],
            };
        }
        let sixteen = |at: usize| {
            let mut address = [0; 16];
            address.copy_from_slice(&bytes[at..at + 16]);
            unmapped(address)
        };
        let first = u32::from_be_bytes(four(0));
        Header {
            source: sixteen(8),
            destination: sixteen(24),
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            hop_limit: bytes[7],
        }
    }

    /// Sets the address of the datagram's sender.
    fn fill(&self, link: &LinkInfo, attr: &mut ibv_ah_attr) -> Result<(), c_int> {
        attr.is_global = 1;
        attr.grh.dgid = ibv_gid {
            raw: mapped(self.source),
        };
        attr.grh.sgid_index = self.index(link).ok_or_else(|| {
            refuse(
                libc::ENODATA,
                "the destination address of the datagram is no longer in the GID table",
            )
        })?;
        attr.grh.flow_label = self.flow_label;
        attr.grh.hop_limit = self.hop_limit;
        attr.grh.traffic_class = self.traffic_class;
        Ok(())
    }

    /// Returns the GID index of the datagram's destination; for a multicast group, that of
    /// any address of the same family.
    fn index(&self, link: &LinkInfo) -> Option<u8> {
        let group = self.destination.is_multicast();
        let ours = |address: IpAddr| match group {
            true => address.is_ipv4() == self.destination.is_ipv4(),
            false => address == self.destination,
        };
        let gid = link.gids.iter().find(|gid| ours(gid.address))?;
        u8::try_from(gid.index).ok()
    }
}

/// True if the bytes are an IPv4 header without options and with a valid checksum.
fn is_ipv4(bytes: &[u8; 40]) -> bool {
    let words = bytes[20..].as_chunks::<2>().0.iter();
    let sum: u32 = words.map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    bytes[20] == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns the IP address of a GID.
pub(crate) fn unmapped(gid: [u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// `ibv_resolve_eth_l2_from_gid`: the MAC address of a GID that contains it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut u8,
    vid: *mut u16,
) -> c_int {
    /// VLAN number of packets without a VLAN tag.
    const NO_VLAN: u16 = 0xffff;
    let attr = argument!(attr, "ibv_resolve_eth_l2_from_gid: the attributes are NULL" => negative);
    if eth_mac.is_null() {
        let why = "ibv_resolve_eth_l2_from_gid: the place for the MAC address is NULL";
        return -refuse(libc::EINVAL, why);
    }
    let address = unmapped(convert::raw_gid(&attr.grh.dgid));
    let owner = context!(context, "ibv_resolve_eth_l2_from_gid: the context is NULL" => negative);
    let link = owner.device.link();
    let Some(mac) = mac_of(address, &link) else {
        return -refuse(
            libc::EHOSTUNREACH,
            format_args!("no hardware address is known for {address}"),
        );
    };
    // SAFETY: the program's array has the 6 bytes of a MAC address, and is not NULL; `vid` is
    // a variable of the program, or NULL.
    unsafe {
        eth_mac.copy_from_nonoverlapping(mac.as_ptr(), mac.len());
        if let Some(vid) = vid.as_mut() {
            *vid = NO_VLAN;
        }
    }
    0
}

fn mac_of(address: IpAddr, link: &LinkInfo) -> Option<[u8; 6]> {
    if link.gids.iter().any(|gid| gid.address == address) {
        return Some(link.mac);
    }
    match address {
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            Some([1, 0, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(v6) => match v6.octets() {
            [0xff, .., a, b, c, d] => Some([0x33, 0x33, a, b, c, d]),
            [0xfe, 0x80, .., a, b, c, 0xff, 0xfe, d, e, f] => Some([a ^ 2, b, c, d, e, f]),
            _ => None,
        },
        IpAddr::V4(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: [u8; 20] = [
        0x45, 7, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];

    fn with_checksum(mut header: [u8; 20]) -> [u8; 40] {
        let sum: u32 = header
            .chunks(2)
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
            .sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut bytes = [0; 40];
        bytes[20..].copy_from_slice(&header);
        bytes
    }

    #[test]
    fn an_ipv4_header_is_recognised() {
        let header = Header::parse(&with_checksum(V4));
        assert_eq!(header.source, "10.0.0.1".parse::<IpAddr>().unwrap());
        assert_eq!(header.destination, "10.0.0.2".parse::<IpAddr>().unwrap());
        assert_eq!((header.traffic_class, header.hop_limit), (7, 64));
    }

    #[test]
    fn all_else_is_ipv6() {
        let mut bytes = with_checksum(V4);
        bytes[30] ^= 1;
        assert!(Header::parse(&bytes).source.is_ipv6());
        bytes[..4].copy_from_slice(&0x6a51_2345_u32.to_be_bytes());
        bytes[7] = 9;
        let header = Header::parse(&bytes);
        assert_eq!((header.traffic_class, header.flow_label), (0xa5, 0x12345));
        assert_eq!(header.hop_limit, 9);
    }
}
