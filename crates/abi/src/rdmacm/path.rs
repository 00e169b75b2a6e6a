//! `ibv_sa_path_rec`: the path record in `rdma_cm_id`.

use ferroce_rdmacm::Path;

use crate::ffi::*;

/// "Exactly", in the selectors of a path record.
const EXACTLY: u8 = 2;

/// Returns the path record of a path between two addresses.
pub(crate) fn record(path: &Path, addresses: &rdma_ib_addr) -> ibv_sa_path_rec {
    ibv_sa_path_rec {
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
    }
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
