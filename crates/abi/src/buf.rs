//! Buffers of `ibv_alloc_buf`: plain memory of the process.

use core::ffi::{c_int, c_void};
use core::ptr;

use crate::errno::{minus_one, null, refuse};
use crate::ffi::*;
use crate::newer::ibv_reg_mr_ex;

/// The object behind an `ibv_buf`, which is opaque to programs.
struct Buffer {
    pd: *mut ibv_pd,
    address: *mut c_void,
    size: usize,
}

impl Buffer {
    /// True if a range lies within the buffer.
    fn contains(&self, address: *mut c_void, length: usize) -> bool {
        let offset = (address as usize).checked_sub(self.address as usize);
        let end = offset.and_then(|offset| offset.checked_add(length));
        end.is_some_and(|end| end <= self.size)
    }
}

/// `ibv_alloc_buf`: whole pages, as rdma-core allocates them for devices without memory of
/// their own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    if pd.is_null() || buf.is_null() {
        let why = "ibv_alloc_buf: the protection domain or the place for the handle is NULL";
        return null(refuse(libc::EINVAL, why));
    }
    let mut address = ptr::null_mut();
    let page = rustix::param::page_size();
    // SAFETY: `address` is writable, and a page's size is a power of two.
    let errno = unsafe { libc::posix_memalign(&raw mut address, page, size) };
    if errno != 0 {
        let why = format_args!("ibv_alloc_buf: {size} bytes cannot be allocated");
        return null(refuse(errno, why));
    }
    let buffer = Box::new(Buffer { pd, address, size });
    // SAFETY: the program's variable for the handle is writable.
    unsafe { buf.write(Box::into_raw(buffer).cast()) };
    address
}

/// `ibv_free_buf`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    if buf.is_null() {
        return;
    }
    // SAFETY: the handle came from `ibv_alloc_buf`, and this is the program's last use of it
    // and of its memory.
    unsafe {
        let buffer = Box::from_raw(buf.cast::<Buffer>());
        libc::free(buffer.address);
    }
}

/// `ibv_reg_buf_mr`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let mut attr = ibv_mr_init_attr {
        length,
        access,
        comp_mask: u64::from(IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR),
        iova: 0,
        addr,
        fd: -1,
        fd_offset: 0,
        dmah: ptr::null_mut(),
        buf,
    };
    // SAFETY: the program's domain and buffer are live, or NULL. `attr` is a local variable
    // whose mask names the fields that are set.
    unsafe { ibv_reg_mr_ex(pd, &raw mut attr) }
}

/// `ibv_export_buf_dmabuf_fd`: buffers are not dma-bufs.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut ibv_buf) -> c_int {
    let why = "ibv_export_buf_dmabuf_fd: buffers of this device are ordinary memory";
    minus_one(refuse(libc::ENODATA, why))
}

/// Checks that a registration that names a buffer lies within its memory.
///
/// # Safety
///
/// The buffer is NULL or a live handle of `ibv_alloc_buf`.
pub(crate) unsafe fn check(pd: *mut ibv_pd, attr: &ibv_mr_init_attr) -> Result<(), c_int> {
    const FD: u64 = (IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET) as u64;
    const ADDR: u64 = IBV_REG_MR_MASK_ADDR as u64;
    // SAFETY: the handle is live, or NULL: see `# Safety`. `Buffer` is the type behind it.
    let Some(buffer) = (unsafe { attr.buf.cast::<Buffer>().as_ref() }) else {
        return Err(refuse(libc::EINVAL, "ibv_reg_mr_ex: the buffer is NULL"));
    };
    if attr.comp_mask & ADDR == 0 || attr.comp_mask & FD != 0 {
        let why = "ibv_reg_mr_ex: a buffer is registered by an address within it, not by a dma-buf";
        return Err(refuse(libc::EINVAL, why));
    }
    if pd != buffer.pd {
        let why = "ibv_reg_mr_ex: the buffer was allocated from another protection domain";
        return Err(refuse(libc::EINVAL, why));
    }
    if !buffer.contains(attr.addr, attr.length) {
        let why = format_args!(
            "ibv_reg_mr_ex: {} bytes at {:?} are not within the buffer, {} bytes at {:?}",
            attr.length, attr.addr, buffer.size, buffer.address
        );
        return Err(refuse(libc::EINVAL, why));
    }
    Ok(())
}
