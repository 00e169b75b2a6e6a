//! `ibv_sa_path_rec`: the path record in `rdma_cm_id`.

use ferroce_rdmacm::Path;

use super::Outcome;
use crate::errno::refuse;
use crate::ffi::*;

/// "Exactly", in the selectors of a path record.
const EXACTLY: u8 = 2;

/// Fills the path record of an id. Programs may free it, so the C library allocates it.
pub(crate) fn set(c: &mut rdma_cm_id, path: &Path) -> Outcome {
    let route = &mut c.route;
    // SAFETY: reading the addresses is valid for every content of the union, and `calloc`
    // has no requirements. The record is NULL, or was allocated here with its size.
    let (addresses, record) = unsafe {
        if route.path_rec.is_null() {
            route.path_rec = libc::calloc(1, size_of::<ibv_sa_path_rec>()).cast();
        }
        (route.addr.addr.ibaddr, route.path_rec.as_mut())
    };
    let Some(record) = record else {
        return Err(refuse(libc::ENOMEM, "the process has no memory left"));
    };
    route.num_paths = 1;
    *record = ibv_sa_path_rec {
        dgid: addresses.dgid,
        sgid: addresses.sgid,
        flow_label: path.flow_label.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: 0xffff,
        mtu_selector: EXACTLY,
        mtu: path.mtu,
        rate_selector: EXACTLY,
        rate: rate(path.speed_mbps),
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.life_time,
        preference: (IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL) as u8,
        ..zeroed()
    };
    Ok(())
}

/// Frees a path record, or nothing.
pub(crate) fn free(record: *mut ibv_sa_path_rec) {
    // SAFETY: the record is NULL, or `set` allocated it and its id is destroyed.
    unsafe { libc::free(record.cast()) };
}

/// Returns the rate of a netdev, as the kernel rounds it.
fn rate(speed_mbps: u32) -> u8 {
    let rate = match speed_mbps {
        40_000.. => IBV_RATE_40_GBPS,
        30_000.. => IBV_RATE_30_GBPS,
        20_000.. => IBV_RATE_20_GBPS,
        10_000.. => IBV_RATE_10_GBPS,
        _ => IBV_RATE_MAX,
    };
    rate as u8
}
