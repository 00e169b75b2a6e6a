//! Names of enumerators, with the texts of libibverbs, which people search for.

use core::ffi::{CStr, c_char};

use crate::ffi::*;

/// A table of names, indexed by the enumerator's value.
type Names = &'static [&'static CStr];

const NODE_TYPES: Names = &[
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: Names = &[
    c"no state change (NOP)",
    c"down",
    c"init",
    c"armed",
    c"active",
    c"active defer",
];

const EVENT_TYPES: Names = &[
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"device speed change",
];

const WC_STATUSES: Names = &[
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory bind operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const WR_OPCODES: Names = &[
    c"RDMA write",
    c"RDMA write with immediate",
    c"send",
    c"send with immediate",
    c"RDMA read",
    c"atomic compare and swap",
    c"atomic fetch and add",
    c"local invalidate",
    c"bind memory window",
    c"send with invalidate",
    c"TSO",
    c"driver-specific",
];

fn name(names: Names, place: usize) -> *const c_char {
    names.get(place).unwrap_or(&c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    name(NODE_TYPES, usize::try_from(node_type).unwrap_or(0))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char {
    name(PORT_STATES, port_state as usize)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    name(EVENT_TYPES, event as usize)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    name(WC_STATUSES, status as usize)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    match opcode {
        IBV_WR_FLUSH => c"flush".as_ptr(),
        IBV_WR_ATOMIC_WRITE => c"atomic write".as_ptr(),
        other => name(WR_OPCODES, other as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> &'static str {
        // SAFETY: all names are constants.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    }

    #[test]
    fn enumerators_have_their_names() {
        assert_eq!(text(ibv_node_type_str(IBV_NODE_RNIC)), "iWARP NIC");
        assert_eq!(text(ibv_node_type_str(-1)), "unknown");
        assert_eq!(text(ibv_port_state_str(IBV_PORT_ACTIVE)), "active");
        assert_eq!(text(ibv_port_state_str(99)), "unknown");
        let retry = ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR);
        assert_eq!(text(retry), "transport retry counter exceeded");
        assert_eq!(
            text(ibv_wc_status_str(IBV_WC_TM_RNDV_INCOMPLETE)),
            "TM software rendezvous"
        );
        assert_eq!(
            text(ibv_event_type_str(IBV_EVENT_GID_CHANGE)),
            "GID table change"
        );
        assert_eq!(text(ibv_event_type_str(u32::MAX)), "unknown");
        assert_eq!(
            text(ibv_wr_opcode_str(IBV_WR_SEND_WITH_INV)),
            "send with invalidate"
        );
        assert_eq!(text(ibv_wr_opcode_str(IBV_WR_FLUSH)), "flush");
    }
}
