//! Attributes of the device and its port, and the device's clock.

use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};

use ferroce_device::LinkInfo;

use crate::arguments::put;
use crate::context::context;
use crate::errno::refuse;
use crate::ffi::*;
use crate::limits::*;
use crate::profile;
use crate::provoke::provoke;

/// Capabilities beyond 32 bits: flushes of both kinds, and atomic writes.
pub(crate) const FLUSH_AND_ATOMIC_WRITE: u64 = 0b111 << 38;

/// The vendor ID of an adapter without a vendor.
const VENDOR_ID: u32 = 0xff_ffff;

/// Returns the attributes for `ibv_query_device`.
fn device_attr(link: &LinkInfo) -> ibv_device_attr {
    let guid = u64::from_ne_bytes(link.guid());
    if link.is_iwarp() {
        return siw_attr(guid);
    }
    ibv_device_attr {
        fw_ver: version(),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        vendor_id: VENDOR_ID,
        max_qp: MAX_QP,
        max_qp_wr: MAX_QP_WR,
        device_cap_flags: device_cap_flags(),
        max_sge: MAX_SGE,
        max_sge_rd: MAX_SGE,
        max_cq: MAX_CQ,
        max_cqe: MAX_CQE,
        max_mr: MAX_MR,
        max_pd: MAX_PD,
        max_qp_rd_atom: MAX_RD_ATOMIC,
        max_res_rd_atom: MAX_RES_RD_ATOMIC,
        max_qp_init_rd_atom: MAX_RD_ATOMIC,
        atomic_cap: IBV_ATOMIC_HCA,
        max_mw: MAX_MR,
        max_mcast_grp: MAX_MCAST_GROUPS,
        max_mcast_qp_attach: MAX_MCAST_QP_ATTACH,
        max_total_mcast_qp_attach: MAX_TOTAL_MCAST_QP_ATTACH,
        max_ah: MAX_AH,
        max_srq: MAX_SRQ,
        max_srq_wr: MAX_SRQ_WR,
        max_srq_sge: MAX_SRQ_SGE,
        max_pkeys: MAX_PKEYS,
        local_ca_ack_delay: LOCAL_CA_ACK_DELAY,
        phys_port_cnt: 1,
        ..zeroed()
    }
}

/// Returns the attributes of an iWARP device: those of the kernel's siw, but the version and the
/// limits of completion queues and regions, which are Ferroce's.
fn siw_attr(guid: u64) -> ibv_device_attr {
    ibv_device_attr {
        fw_ver: version(),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 4096,
        vendor_id: siw::VENDOR_ID,
        vendor_part_id: siw::VENDOR_PART_ID,
        max_qp: siw::MAX_QP,
        max_qp_wr: siw::MAX_QP_WR,
        device_cap_flags: IBV_DEVICE_MEM_MGT_EXTENSIONS,
        max_sge: siw::MAX_SGE,
        max_sge_rd: siw::MAX_SGE_RD,
        max_cq: siw::MAX_CQ,
        max_cqe: MAX_CQE,
        max_mr: MAX_MR,
        max_pd: siw::MAX_QP,
        max_qp_rd_atom: MAX_RD_ATOMIC,
        max_res_rd_atom: siw::MAX_QP * MAX_RD_ATOMIC,
        max_qp_init_rd_atom: MAX_RD_ATOMIC,
        atomic_cap: IBV_ATOMIC_NONE,
        max_srq: siw::MAX_QP,
        max_srq_wr: siw::MAX_SRQ_WR,
        max_srq_sge: siw::MAX_SGE,
        phys_port_cnt: 1,
        ..zeroed()
    }
}

fn device_cap_flags() -> u32 {
    IBV_DEVICE_BAD_PKEY_CNTR
        | IBV_DEVICE_BAD_QKEY_CNTR
        | IBV_DEVICE_AUTO_PATH_MIG
        | IBV_DEVICE_CHANGE_PHY_PORT
        | IBV_DEVICE_UD_AV_PORT_ENFORCE
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_XRC
        | IBV_DEVICE_MEM_MGT_EXTENSIONS
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
}

/// Returns the attributes for `ibv_query_device_ex`.
fn device_attr_ex(link: &LinkInfo) -> ibv_device_attr_ex {
    if link.is_iwarp() {
        let orig_attr = device_attr(link);
        return ibv_device_attr_ex {
            device_cap_flags_ex: u64::from(orig_attr.device_cap_flags),
            orig_attr,
            phys_port_cnt_ex: 1,
            ..zeroed()
        };
    }
    let datagrams = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    let writes = datagrams | IBV_ODP_SUPPORT_WRITE;
    let everything = writes | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    ibv_device_attr_ex {
        orig_attr: device_attr(link),
        odp_caps: ibv_odp_caps {
            general_caps: u64::from(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT),
            per_transport_caps: ibv_odp_per_transport_caps {
                rc_odp_caps: everything | IBV_ODP_SUPPORT_FLUSH | IBV_ODP_SUPPORT_ATOMIC_WRITE,
                uc_odp_caps: writes & !IBV_ODP_SUPPORT_SRQ_RECV,
                ud_odp_caps: datagrams,
            },
        },
        xrc_odp_caps: everything,
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: CLOCK_KHZ,
        device_cap_flags_ex: u64::from(device_cap_flags()) | FLUSH_AND_ATOMIC_WRITE,
        max_dm_size: MAX_DM_SIZE,
        phys_port_cnt_ex: 1,
        ..zeroed()
    }
}

/// Returns the attributes for `ibv_query_port`.
fn port_attr(link: &LinkInfo) -> ibv_port_attr {
    let (width, speed) = width_and_speed(link.speed_mbps.unwrap_or(0));
    let is_iwarp = link.is_iwarp();
    let (state, phys_state) = match (link.up, link.carrier) {
        (true, true) => (IBV_PORT_ACTIVE, 5),
        (true, false) => (IBV_PORT_DOWN, 2),
        (false, _) => (IBV_PORT_DOWN, 3),
    };
    ibv_port_attr {
        state,
        // siw reports the MTU of its netdev as both.
        max_mtu: match is_iwarp {
            true => mtu(link.active_mtu),
            false => IBV_MTU_4096,
        },
        active_mtu: mtu(link.active_mtu),
        gid_tbl_len: if is_iwarp { 1 } else { GID_TABLE },
        port_cap_flags: match is_iwarp {
            true => IBV_PORT_CM_SUP | IBV_PORT_DEVICE_MGMT_SUP,
            false => IBV_PORT_CM_SUP,
        },
        max_msg_sz: if is_iwarp { u32::MAX } else { MAX_MESSAGE },
        pkey_tbl_len: if is_iwarp { 0 } else { 1 },
        lid: link.lid(),
        max_vl_num: if is_iwarp { 0 } else { 1 },
        active_width: width,
        active_speed: speed,
        phys_state,
        link_layer: IBV_LINK_LAYER_ETHERNET as u8,
        active_speed_ex: u32::from(speed),
        ..zeroed()
    }
}

fn mtu(bytes: u32) -> ibv_mtu {
    match bytes {
        0..512 => IBV_MTU_256,
        512..1024 => IBV_MTU_512,
        1024..2048 => IBV_MTU_1024,
        2048..4096 => IBV_MTU_2048,
        4096.. => IBV_MTU_4096,
    }
}

/// Returns the codes of link width and lane speed for a netdev's Mb/s.
fn width_and_speed(mbps: u32) -> (u8, u8) {
    const X1: u8 = 1;
    const X4: u8 = 2;
    const X2: u8 = 16;
    match mbps {
        0..=1_000 => (X1, 1),
        1_001..=10_000 => (X1, 8),
        10_001..=20_000 => (X4, 2),
        20_001..=25_000 => (X1, 32),
        25_001..=40_000 => (X4, 8),
        40_001..=50_000 => (X2, 32),
        50_001..=100_000 => (X4, 32),
        100_001..=200_000 => (X4, 64),
        200_001.. => (X4, 128),
    }
}

/// Returns the version of this library, as the firmware version.
fn version() -> [c_char; 64] {
    let mut version = [0; 64];
    for (to, from) in version.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from as c_char;
    }
    version
}

/// Writes a structure of which the program knows `size` bytes: an older program gets the
/// beginning, a newer one zeros after it.
///
/// # Safety
///
/// `to` has room for `size` bytes.
pub(crate) unsafe fn copy_out<T: Plain>(value: &T, to: *mut c_void, size: usize) {
    let length = size.min(size_of::<T>());
    // SAFETY: `to` has room for `size` bytes, and `length` is at most the size of `value`.
    unsafe {
        to.cast::<u8>().write_bytes(0, size);
        let from = core::ptr::from_ref(value).cast::<u8>();
        to.cast::<u8>().copy_from_nonoverlapping(from, length);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    provoke!("ibv_query_device" => errno);
    let owner = context!(context, "ibv_query_device: the context is NULL" => errno);
    let mut found = device_attr(&owner.device.link());
    profile::apply(&owner.settings, &mut found);
    put!(attr, found, "ibv_query_device: the place for the attributes is NULL" => errno);
    0
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    provoke!("ibv_query_device" => errno);
    // SAFETY: the program's structure is live, or NULL.
    if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
        return refuse(
            libc::EINVAL,
            "ibv_query_device_ex: comp_mask of the input is not 0",
        );
    }
    if attr_size < offset_of!(ibv_device_attr_ex, odp_caps) {
        return refuse(
            libc::EINVAL,
            format_args!("ibv_query_device_ex: a structure of {attr_size} bytes is too small"),
        );
    }
    let owner = context!(context, "ibv_query_device_ex: the context is NULL" => errno);
    let mut found = device_attr_ex(&owner.device.link());
    profile::apply_ex(&owner.settings, &mut found);
    // SAFETY: the program's structure has `attr_size` bytes.
    unsafe { copy_out(&found, attr.cast(), attr_size) };
    0
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    attr_size: usize,
) -> c_int {
    provoke!("ibv_query_port" => errno);
    if port_num != 1 {
        return refuse(
            libc::EINVAL,
            format_args!("ibv_query_port: port {port_num}: the device has port 1 only"),
        );
    }
    let owner = context!(context, "ibv_query_port: the context is NULL" => errno);
    let mut found = port_attr(&owner.device.link());
    profile::apply_port(&owner.settings, &mut found);
    // SAFETY: the program's structure has `attr_size` bytes.
    unsafe { copy_out(&found, attr.cast(), attr_size) };
    0
}

/// `ibv_query_port`, which fills the first version of the structure, up to `flags`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    provoke!("ibv_query_port" => errno);
    const SIZE: usize = offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: the program's context is open, and the first structure has `SIZE` bytes.
    unsafe { query_port(context, port_num, attr.cast(), SIZE) }
}

pub(crate) unsafe extern "C" fn query_rt_values(
    _context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the program's structure is live.
    let values = unsafe { &mut *values };
    let wanted = values.comp_mask;
    values.comp_mask = wanted & IBV_VALUES_MASK_RAW_CLOCK;
    if values.comp_mask != 0 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        values.raw_clock.tv_sec = 0;
        values.raw_clock.tv_nsec = now.tv_sec * 1_000_000_000 + now.tv_nsec;
    }
    if wanted & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
        return refuse(
            libc::EINVAL,
            format_args!(
                "ibv_query_rt_values_ex: comp_mask {wanted:#x}: only the raw clock can be read"
            ),
        );
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_flags_are_those_of_rxe_plus_xrc() {
        assert_eq!(device_cap_flags(), 0x0122_3c76 | IBV_DEVICE_XRC);
    }

    /// The values that `ibv_devinfo -v` prints for the kernel's siw (Linux 6.1).
    #[test]
    fn attributes_of_an_iwarp_device_are_those_of_siw() {
        let mut link = LinkInfo::new("siw0", "lo", 1);
        link.kind = "siw".into();
        let all = device_attr_ex(&link);
        let attr = &all.orig_attr;
        assert_eq!((attr.vendor_id, attr.vendor_part_id), (0x62_6d74, 1));
        assert_eq!((attr.hw_ver, attr.phys_port_cnt), (0, 1));
        assert_eq!((attr.max_mr_size, attr.page_size_cap), (u64::MAX, 0x1000));
        assert_eq!((attr.max_qp, attr.max_qp_wr), (102_400, 32_768));
        assert_eq!(attr.device_cap_flags, 0x0020_0000);
        assert_eq!((attr.max_sge, attr.max_sge_rd), (6, 1));
        assert_eq!((attr.max_cq, attr.max_pd), (102_400, 102_400));
        let depths = (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom);
        assert_eq!(depths, (128, 128));
        assert_eq!(attr.max_res_rd_atom, 13_107_200);
        assert_eq!(attr.atomic_cap, IBV_ATOMIC_NONE);
        let none = [
            attr.max_mw,
            attr.max_mcast_grp,
            attr.max_mcast_qp_attach,
            attr.max_total_mcast_qp_attach,
            attr.max_ah,
            attr.max_pkeys.into(),
            attr.local_ca_ack_delay.into(),
        ];
        assert_eq!(none, [0; 7]);
        let srq = (attr.max_srq, attr.max_srq_wr, attr.max_srq_sge);
        assert_eq!(srq, (102_400, 327_680, 6));
        assert_eq!((all.device_cap_flags_ex, all.xrc_odp_caps), (0x20_0000, 0));
        assert_eq!((all.completion_timestamp_mask, all.hca_core_clock), (0, 0));
        link.active_mtu = 1024;
        let port = port_attr(&link);
        assert_eq!(
            (port.max_mtu, port.active_mtu),
            (IBV_MTU_1024, IBV_MTU_1024)
        );
        assert_eq!(port.max_vl_num, 0);
        assert_eq!((port.max_msg_sz, port.port_cap_flags), (!0, 0x0009_0000));
        assert_eq!((port.pkey_tbl_len, port.gid_tbl_len), (0, 1));
        assert_eq!((port.lid, port.subnet_timeout), (0, 0));
    }

    #[test]
    fn on_demand_paging_covers_all_operations_of_each_transport() {
        let caps = device_attr_ex(&LinkInfo::new("rxe0", "lo", 1));
        let newer = IBV_ODP_SUPPORT_FLUSH | IBV_ODP_SUPPORT_ATOMIC_WRITE;
        let transports = caps.odp_caps.per_transport_caps;
        assert_eq!(transports.rc_odp_caps, 0xff);
        assert_eq!(caps.xrc_odp_caps, 0xff & !newer);
        assert_eq!(transports.uc_odp_caps & newer, 0);
    }

    #[test]
    fn netdev_speeds_map_to_link_width_and_speed() {
        assert_eq!(width_and_speed(0), (1, 1));
        assert_eq!(width_and_speed(10_000), (1, 8));
        assert_eq!(width_and_speed(25_000), (1, 32));
        assert_eq!(width_and_speed(100_000), (2, 32));
        assert_eq!(width_and_speed(400_000), (2, 128));
    }

    #[test]
    fn short_structure_is_not_overrun_and_long_one_is_zeroed() {
        let value = ibv_query_device_ex_input { comp_mask: !0 };
        let mut bytes = [7u8; 8];
        // SAFETY: the array has 8 bytes.
        unsafe { copy_out(&value, bytes.as_mut_ptr().cast(), 2) };
        assert_eq!(bytes, [255, 255, 7, 7, 7, 7, 7, 7]);
        // SAFETY: the array has 8 bytes.
        unsafe { copy_out(&value, bytes.as_mut_ptr().cast(), 6) };
        assert_eq!(bytes, [255, 255, 255, 255, 0, 0, 7, 7]);
    }
}
