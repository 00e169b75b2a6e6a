//! `ibv_advise_mr`: prefetching pages of on-demand regions.

use core::ffi::c_int;

use ferroce_device::transport::{Access, AccessError, MemorySpace};

use crate::arguments::slice;
use crate::errno::refuse;
use crate::ffi::*;
use crate::mapping;
use crate::object::object;
use crate::pd::PdObject;

/// `IBV_ADVISE_MR_FLAG_FLUSH`: prefetch before the call returns.
const FLUSH: u32 = 1 << 0;

/// `ibv_advise_mr`
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    let object = object!(pd as PdObject, "ibv_advise_mr: the protection domain is NULL" => errno);
    if advice > IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
        return refuse(
            libc::EOPNOTSUPP,
            format_args!("ibv_advise_mr: advice {advice} is unknown"),
        );
    }
    // SAFETY: the program's list has `num_sge` elements, or is NULL.
    let sges = unsafe { slice(sg_list.cast_const(), num_sge as usize) };
    let Some(sges) = sges.filter(|sges| !sges.is_empty() && flags & !FLUSH == 0) else {
        return refuse(
            libc::EINVAL,
            format_args!(
                "ibv_advise_mr: flags {flags:#x}, {num_sge} elements: needs at least one element, and knows the flag FLUSH only"
            ),
        );
    };
    let ranges = |sge: &ibv_sge| range(object, sge, advice);
    // One invalid element refuses the whole call.
    if let Some(errno) = sges.iter().find_map(|sge| ranges(sge).err()) {
        return errno;
    }
    if advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
        return 0;
    }
    let write = advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    let now = flags & FLUSH != 0;
    for sge in sges {
        let fetched = ranges(sge).and_then(|pages| mapping::fetch(pages, write, now));
        if let (Err(errno), true) = (fetched, now) {
            return errno;
        }
    }
    0
}

/// Returns the pages of an element.
fn range(pd: &PdObject, sge: &ibv_sge, advice: u32) -> Result<core::ops::Range<u64>, c_int> {
    let mut need = Access::ON_DEMAND;
    if advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE {
        need |= Access::LOCAL_WRITE;
    }
    let device = pd.device();
    let memory = device.check_lkey(sge.lkey, pd.pd(), need, sge.addr, sge.length);
    let memory = memory.map_err(|error| {
        let errno = match error {
            AccessError::Unknown { .. } => libc::ENOENT,
            AccessError::OtherDomain { .. } => libc::EPERM,
            AccessError::Denied { missing, .. } if !missing.contains(Access::ON_DEMAND) => {
                libc::EPERM
            }
            AccessError::OutOfRange { .. } => libc::EFAULT,
            _ => libc::EINVAL,
        };
        refuse(errno, format_args!("ibv_advise_mr: {error}"))
    })?;
    match memory.space() {
        MemorySpace::Host => {}
        MemorySpace::Gpu(_) => {
            return Err(refuse(
                libc::EOPNOTSUPP,
                format_args!("ibv_advise_mr: memory at {memory} has no pages to prefetch"),
            ));
        }
    }
    mapping::pages(memory.addr(), u64::from(sge.length)).ok_or_else(|| {
        refuse(
            libc::EFAULT,
            "ibv_advise_mr: the range passes the end of the address space",
        )
    })
}
