//! `rdma_set_option`, enhanced connection establishment and `rdma_write_cm_event`.

use core::ffi::{c_int, c_void};

use ferroce_rdmacm::Ece;

use super::id::{IdObject, id_of};
use super::resolve::start_route;
use super::{Outcome, finish, refused};
use crate::arguments::slice;
use crate::errno::refuse;
use crate::ffi::*;
use crate::object::argument;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    finish(id_of(id).and_then(|id| {
        // SAFETY: the value is NULL, or has as many bytes as the program says.
        let value = unsafe { slice(optval.cast_const().cast(), optlen) };
        let value = value.filter(|_| !optval.is_null()).ok_or_else(|| {
            let why = format_args!("rdma_set_option: {optlen} bytes at {optval:?} are no value");
            refuse(libc::EINVAL, why)
        })?;
        set(&id, level, optname, value)
    }))
}

fn set(id: &IdObject, level: c_int, option: c_int, value: &[u8]) -> Outcome {
    let set = match (level, option) {
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => return set_path(id, value),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => id.id.set_type_of_service(byte(value)?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => id.id.set_reuse_address(flag(value)?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => id.id.set_af_only(flag(value)?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => id.id.set_ack_timeout(byte(value)?),
        _ => {
            return Err(refuse(
                libc::ENOSYS,
                format_args!("rdma_set_option: option {option} of level {level} is unknown"),
            ));
        }
    };
    set.map_err(refused("rdma_set_option"))
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

/// Sets the path. The program's path must be usable; RoCE has only one.
fn set_path(id: &IdObject, value: &[u8]) -> Outcome {
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
    if id.id.device().is_none() {
        return Err(refuse(
            libc::EINVAL,
            "rdma_set_option: the id has no device, its address is not resolved",
        ));
    }
    start_route(id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    let ece = argument!(ece, "rdma_set_local_ece: the structure is NULL" => minus_one);
    finish(id_of(id).and_then(|id| {
        if !id.c.qp().get().is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(refuse(
                libc::EINVAL,
                "rdma_set_local_ece: needs an id without a queue pair, a vendor, and a comp_mask of 0",
            ));
        }
        let ece = Ece {
            vendor_id: ece.vendor_id,
            options: ece.options,
        };
        id.id.set_local_ece(ece).map_err(refused("rdma_set_local_ece"))
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the program passes NULL or a whole structure.
    let ece = unsafe { ece.as_mut() };
    finish(id_of(id).and_then(|id| {
        let ece =
            ece.ok_or_else(|| refuse(libc::EINVAL, "rdma_get_remote_ece: the structure is NULL"))?;
        if !id.c.qp().get().is_null() {
            return Err(refuse(
                libc::EINVAL,
                "rdma_get_remote_ece: the id has a queue pair of its own",
            ));
        }
        let remote = id.id.remote_ece();
        *ece = ibv_ece {
            vendor_id: remote.vendor_id,
            options: remote.options,
            comp_mask: 0,
        };
        Ok(())
    }))
}

/// Queues an event of the program's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    finish(id_of(id).and_then(|id| {
        if event != RDMA_CM_EVENT_USER {
            return Err(refuse(
                libc::EINVAL,
                format_args!("rdma_write_cm_event: event {event} is not RDMA_CM_EVENT_USER"),
            ));
        }
        let posted = id.id.post_user_event(event, status, arg);
        posted.map_err(refused("rdma_write_cm_event"))
    }))
}
