//! Functions that libibverbs got after version 44.
//!
//! Registration with a structure of attributes works; so does the port's speed.
//! Steering tags, buffers of a device and completion counters need hardware.

use core::ffi::{c_int, c_void};

use crate::context::context_of;
use crate::errno::{minus_one, null};
use crate::ffi::*;

/// `ibv_query_port_speed`: in units of 100 Mb/s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port_num: u32,
    port_speed: *mut u64,
) -> c_int {
    if port_num != 1 {
        return libc::EINVAL;
    }
    // SAFETY: by contract both pointers are valid.
    unsafe {
        let mbps = context_of(context).device.link().speed_mbps;
        port_speed.write(u64::from(mbps.unwrap_or(1000)) / 100);
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_dmah(
    _context: *mut ibv_context,
    _attr: *mut ibv_dmah_init_attr,
) -> *mut ibv_dmah {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_dmah(_dmah: *mut ibv_dmah) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dm_export_dmabuf_fd(_dm: *mut ibv_dm) -> c_int {
    minus_one(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_buf(
    _pd: *mut ibv_pd,
    _size: usize,
    _buf: *mut *mut ibv_buf,
) -> *mut c_void {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_free_buf(_buf: *mut ibv_buf) {}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_buf_mr(
    _pd: *mut ibv_pd,
    _buf: *mut ibv_buf,
    _addr: *mut c_void,
    _length: usize,
    _access: c_int,
) -> *mut ibv_mr {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut ibv_buf) -> c_int {
    minus_one(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub extern "C" fn _ibv_query_comp_cntr_caps(
    _context: *mut ibv_context,
    _caps: *mut ibv_comp_cntr_caps,
    _caps_size: usize,
) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_cntr(
    _context: *mut ibv_context,
    _attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_qp_attach_comp_cntr(
    _qp: *mut ibv_qp,
    _counter: *mut ibv_comp_cntr,
    _attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    libc::EOPNOTSUPP
}

/// Operations of counters, which cannot be had.
macro_rules! counter_operations {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(_counter: *mut ibv_comp_cntr) -> c_int {
                libc::EOPNOTSUPP
            }
        )*
    };
}

counter_operations! {
    ibv_destroy_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_read_comp_cntr
    ibv_read_err_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr
}
