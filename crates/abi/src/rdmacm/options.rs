//! Options of ids, and enhanced connection establishment.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use ferroce_cm::Ece;

use super::channel::Happening;
use super::id::{Id, State, id_of};
use super::resolve::start_route;
use super::{Outcome, finish};
use crate::errno::refuse;
use crate::ffi::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    // SAFETY: the program's id, and as many bytes as it says.
    finish(unsafe {
        id_of(id).and_then(|id| {
            if optval.is_null() {
                return Err(refuse(libc::EINVAL, "rdma_set_option: the value is NULL"));
            }
            let value = core::slice::from_raw_parts(optval.cast::<u8>(), optlen);
            set(id, level, optname, value)
        })
    })
}

fn set(id: &Arc<Id>, level: c_int, option: c_int, value: &[u8]) -> Outcome {
    if (level, option) == (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) {
        return set_path(id, value);
    }
    let mut inner = id.inner();
    match (level, option) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => inner.options.tos = byte(value)?,
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
            let reuse = flag(value)?;
            if inner.state != State::Idle && !(reuse && inner.state != State::Listen) {
                return Err(refuse(
                    libc::EINVAL,
                    "rdma_set_option: RDMA_OPTION_ID_REUSEADDR comes before the address is bound",
                ));
            }
            inner.options.reuse = reuse;
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
            let af_only = flag(value)?;
            if !matches!(inner.state, State::Idle | State::Bound) {
                return Err(refuse(
                    libc::EINVAL,
                    "rdma_set_option: RDMA_OPTION_ID_AFONLY comes before the address is resolved",
                ));
            }
            inner.options.af_only = af_only;
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
            let timeout = byte(value)?;
            if !matches!(id.qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND) || timeout > 31 {
                return Err(refuse(
                    libc::EINVAL,
                    format_args!(
                        "rdma_set_option: ACK timeout {timeout}: 0 to 31, for RC and XRC ids"
                    ),
                ));
            }
            inner.options.ack_timeout = (timeout > 0).then_some(timeout);
        }
        _ => {
            return Err(refuse(
                libc::ENOSYS,
                "rdma_set_option: the option is unknown",
            ));
        }
    }
    Ok(())
}

fn byte(value: &[u8]) -> Outcome<u8> {
    match value {
        [byte] => Ok(*byte),
        _ => Err(refuse(
            libc::EINVAL,
            format_args!(
                "rdma_set_option: a value of {} bytes instead of 1",
                value.len()
            ),
        )),
    }
}

fn flag(value: &[u8]) -> Outcome<bool> {
    let value: [u8; 4] = value
        .try_into()
        .map_err(|_| refuse(libc::EINVAL, "rdma_set_option: the value is not an int"))?;
    Ok(c_int::from_ne_bytes(value) != 0)
}

/// A path that the program has found by itself. On RoCE there is one only.
fn set_path(id: &Arc<Id>, value: &[u8]) -> Outcome {
    const USABLE: u32 = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
    let records = value.chunks_exact(size_of::<ibv_path_data>());
    if !records.remainder().is_empty() {
        return Err(refuse(
            libc::EINVAL,
            "rdma_set_option: the value is not a list of path records",
        ));
    }
    let flags = |record: &[u8]| record.first_chunk().map(|flags| u32::from_ne_bytes(*flags));
    if !records.map(flags).any(|flags| flags == Some(USABLE)) {
        return Err(refuse(
            libc::EINVAL,
            "rdma_set_option: no path record is usable in both directions",
        ));
    }
    if id.inner().device.is_none() {
        return Err(refuse(
            libc::EINVAL,
            "rdma_set_option: the id has no device, its address is not resolved",
        ));
    }
    start_route(id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the program's id, and NULL or its structure.
    finish(unsafe {
        id_of(id).and_then(|shared| {
            let ece = ece.as_ref().ok_or_else(|| refuse(libc::EINVAL, "rdma_set_local_ece: the extension is NULL"))?;
            if !(*id).qp.is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
                return Err(refuse(libc::EINVAL, "rdma_set_local_ece: needs an id without a queue pair, a vendor, and a comp_mask of 0"));
            }
            shared.inner().local_ece = Ece {
                vendor_id: ece.vendor_id,
                options: ece.options,
            };
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the program's id, and NULL or its structure.
    finish(unsafe {
        id_of(id).and_then(|shared| {
            let ece = ece.as_mut().ok_or_else(|| {
                refuse(
                    libc::EINVAL,
                    "rdma_get_remote_ece: there is no place for the extension: NULL",
                )
            })?;
            if !(*id).qp.is_null() {
                return Err(refuse(
                    libc::EINVAL,
                    "rdma_get_remote_ece: the id has a queue pair of its own",
                ));
            }
            let theirs = shared.inner().remote_ece;
            *ece = ibv_ece {
                vendor_id: theirs.vendor_id,
                options: theirs.options,
                comp_mask: 0,
            };
            Ok(())
        })
    })
}

/// An event of the program's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    // SAFETY: the program's id.
    finish(unsafe {
        id_of(id).and_then(|id| {
            if event != RDMA_CM_EVENT_USER {
                return Err(refuse(
                    libc::EINVAL,
                    format_args!("rdma_write_cm_event: event {event} is not RDMA_CM_EVENT_USER"),
                ));
            }
            id.post(Happening::User(status, arg));
            Ok(())
        })
    })
}
