//! The layout of librdmacm's structures, asserted at compile time.

use core::mem::{offset_of, size_of};

use super::layout::layouts;
use super::*;

layouts! {
    RDMACM_LAYOUTS;
    ibv_sa_path_rec: 64 {
        dgid: 0, sgid: 16, dlid: 32, slid: 34, raw_traffic: 36, flow_label: 40, hop_limit: 44,
        traffic_class: 45, reversible: 48, numb_path: 52, pkey: 54, sl: 56, mtu_selector: 57,
        mtu: 58, rate_selector: 59, rate: 60, packet_life_time_selector: 61,
        packet_life_time: 62, preference: 63
    }
    ibv_path_record: 64 {
        service_id: 0, dgid: 8, sgid: 24, dlid: 40, slid: 42, flowlabel_hoplimit: 44,
        tclass: 48, reversible_numpath: 49, pkey: 50, qosclass_sl: 52, mtu: 54, rate: 55,
        packetlifetime: 56, preference: 57, reserved: 58
    }
    ibv_path_data: 72 { flags: 0, reserved: 4, path: 8 }
    rdma_event_channel: 4 { fd: 0 }
    rdma_cm_id: 416 {
        verbs: 0, channel: 8, context: 16, qp: 24, route: 32, ps: 344, port_num: 348,
        event: 352, send_cq_channel: 360, send_cq: 368, recv_cq_channel: 376, recv_cq: 384,
        srq: 392, pd: 400, qp_type: 408
    }
    rdma_addr: 296 {
        src.src_addr: 0, src.src_sin: 0, src.src_sin6: 0, src.src_storage: 0,
        dst.dst_addr: 128, dst.dst_sin: 128, dst.dst_sin6: 128, dst.dst_storage: 128,
        addr: 256, addr.ibaddr: 256
    }
    rdma_ib_addr: 40 { sgid: 0, dgid: 16, pkey: 32 }
    rdma_route: 312 { addr: 0, path_rec: 296, num_paths: 304 }
    rdma_conn_param: 24 {
        private_data: 0, private_data_len: 8, responder_resources: 9, initiator_depth: 10,
        flow_control: 11, retry_count: 12, rnr_retry_count: 13, srq: 14, qp_num: 16
    }
    rdma_ud_param: 56 {
        private_data: 0, private_data_len: 8, ah_attr: 16, qp_num: 48, qkey: 52
    }
    rdma_cm_event: 80 {
        id: 0, listen_id: 8, event: 16, status: 20, param: 24, param.conn: 24, param.ud: 24
    }
    rdma_addrinfo: 96 {
        ai_flags: 0, ai_family: 4, ai_qp_type: 8, ai_port_space: 12, ai_src_len: 16,
        ai_dst_len: 20, ai_src_addr: 24, ai_dst_addr: 32, ai_src_canonname: 40,
        ai_dst_canonname: 48, ai_route_len: 56, ai_route: 64, ai_connect_len: 72,
        ai_connect: 80, ai_next: 88
    }
    rdma_cm_join_mc_attr_ex: 16 { comp_mask: 0, join_flags: 4, addr: 8 }
}
