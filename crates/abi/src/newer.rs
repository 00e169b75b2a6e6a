//! Functions that libibverbs got after version 44.
//!
//! `ibv_reg_mr_ex` and `ibv_query_port_speed` work. DMA handles and completion counters need
//! hardware.

use core::ffi::c_int;

use crate::arguments::put;
use crate::buf;
use crate::context::context;
use crate::errno::{minus_one, null, refuse};
use crate::ffi::*;
use crate::mr::{ibv_reg_dmabuf_mr, ibv_reg_mr_iova2};
use crate::object::argument;

/// `ibv_query_port_speed`: in units of 100 Mb/s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port_num: u32,
    port_speed: *mut u64,
) -> c_int {
    if port_num != 1 {
        return refuse(
            libc::EINVAL,
            format_args!("ibv_query_port_speed: port {port_num}: the device has port 1 only"),
        );
    }
    let owner = context!(context, "ibv_query_port_speed: the context is NULL" => errno);
    let mbps = owner.device.link().speed_mbps.unwrap_or(1000);
    let speed = u64::from(mbps) / 100;
    put!(port_speed, speed, "ibv_query_port_speed: the place for the speed is NULL" => errno);
    0
}

/// `ibv_reg_mr_ex`: memory by its address, or by a dma-buf and an offset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    const FD: u64 = (IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET) as u64;
    const ADDR: u64 = IBV_REG_MR_MASK_ADDR as u64;
    const IOVA: u64 = IBV_REG_MR_MASK_IOVA as u64;
    const BUF: u64 = IBV_REG_MR_MASK_BUF as u64;
    const NEED_HARDWARE: u64 = IBV_REG_MR_MASK_DMAH as u64;
    let attr = argument!(attr, "ibv_reg_mr_ex: the attributes are NULL" => null);
    let mask = attr.comp_mask;
    let iova = if mask & IOVA != 0 {
        attr.iova
    } else {
        attr.addr as u64
    };
    if mask & !(FD | ADDR | IOVA | BUF) != 0 {
        let known = mask & !(FD | ADDR | IOVA | BUF | NEED_HARDWARE) == 0;
        let errno = if known {
            libc::EOPNOTSUPP
        } else {
            libc::EINVAL
        };
        let why = format_args!(
            "ibv_reg_mr_ex: comp_mask {mask:#x} has bits that this device does not know"
        );
        return null(refuse(errno, why));
    }
    if mask & BUF != 0 {
        // SAFETY: the program's buffer is live, or NULL.
        if let Err(errno) = unsafe { buf::check(pd, attr) } {
            return null(errno);
        }
    }
    let (length, access) = (attr.length, attr.access);
    match (mask & FD, mask & ADDR) {
        // SAFETY: the program's domain is live or NULL, and `length` bytes at `addr` are its
        // memory until it deregisters them.
        (0, ADDR) => unsafe {
            ibv_reg_mr_iova2(pd, attr.addr, length, iova, access.cast_unsigned())
        },
        // SAFETY: the program's domain is live or NULL; the call checks the descriptor.
        (FD, 0) if mask & IOVA != 0 => unsafe {
            ibv_reg_dmabuf_mr(pd, attr.fd_offset, length, iova, attr.fd, access)
        },
        _ => null(refuse(
            libc::EINVAL,
            format_args!(
                "ibv_reg_mr_ex: comp_mask {mask:#x} must name an address, or a dma-buf with offset and iova"
            ),
        )),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_dmah(
    _context: *mut ibv_context,
    _attr: *mut ibv_dmah_init_attr,
) -> *mut ibv_dmah {
    null(refuse(
        libc::EOPNOTSUPP,
        "ibv_alloc_dmah: this device has no DMA handles",
    ))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_dmah(_dmah: *mut ibv_dmah) -> c_int {
    refuse(
        libc::EOPNOTSUPP,
        "ibv_dealloc_dmah: this device has no DMA handles",
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dm_export_dmabuf_fd(_dm: *mut ibv_dm) -> c_int {
    minus_one(refuse(
        libc::EOPNOTSUPP,
        "ibv_dm_export_dmabuf_fd: this device exports no dma-buf",
    ))
}

#[unsafe(no_mangle)]
pub extern "C" fn _ibv_query_comp_cntr_caps(
    _context: *mut ibv_context,
    _caps: *mut ibv_comp_cntr_caps,
    _caps_size: usize,
) -> c_int {
    refuse(libc::EOPNOTSUPP, "this device has no completion counters")
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_cntr(
    _context: *mut ibv_context,
    _attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    null(refuse(
        libc::EOPNOTSUPP,
        "ibv_create_comp_cntr: this device has no completion counters",
    ))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_qp_attach_comp_cntr(
    _qp: *mut ibv_qp,
    _counter: *mut ibv_comp_cntr,
    _attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    refuse(
        libc::EOPNOTSUPP,
        "ibv_qp_attach_comp_cntr: this device has no completion counters",
    )
}

/// Defines operations of completion counters, which return EOPNOTSUPP.
macro_rules! counter_operations {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(_counter: *mut ibv_comp_cntr) -> c_int {
                refuse(libc::EOPNOTSUPP, format_args!("{}: this device has no completion counters", stringify!($name)))
            }
        )*
    };
}

counter_operations! {
    ibv_destroy_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_read_comp_cntr
    ibv_read_err_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr
}
