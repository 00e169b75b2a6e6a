//! Thread domains and parent domains.
//!
//! With them adapters share hardware resources and skip locks. This device has no such
//! resources, so the domains have no effect. The allocators of a parent domain are not
//! called: queues have no buffers that hardware reads.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use crate::context::context;
use crate::errno::{null, refuse};
use crate::ffi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC,
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context, ibv_parent_domain_init_attr, ibv_pd,
    ibv_td, ibv_td_init_attr,
};
use crate::object::{Object, argument, free, from_c, into_c, object};
use crate::pd::{PdObject, PdUse};

/// `ibv_td`
#[repr(C)]
struct TdObject {
    c: ibv_td,
    users: Arc<AtomicU32>,
}

// SAFETY: `repr(C)`, and the C structure comes first.
unsafe impl Object for TdObject {
    type C = ibv_td;
}

/// The domains that a parent domain keeps busy: a protection domain, perhaps a thread
/// domain.
pub(crate) struct Parents {
    _pd: PdUse,
    _td: Option<TdUse>,
}

struct TdUse(Arc<AtomicU32>);

impl Drop for TdUse {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// `ibv_alloc_td`
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    let attr = argument!(attr, "ibv_alloc_td: the attributes are NULL" => null);
    if context.is_null() || attr.comp_mask != 0 {
        return null(refuse(
            libc::EINVAL,
            "ibv_alloc_td: the context is NULL, or comp_mask is not 0",
        ));
    }
    into_c(Box::new(TdObject {
        c: ibv_td { context },
        users: Arc::default(),
    }))
}

/// `ibv_dealloc_td`
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let object = object!(td as TdObject, "ibv_dealloc_td: the thread domain is NULL" => errno);
    if object.users.load(Ordering::Acquire) > 0 {
        return refuse(
            libc::EBUSY,
            "ibv_dealloc_td: a parent domain still uses the thread domain",
        );
    }
    free!(td as TdObject);
    0
}

/// `ibv_alloc_parent_domain`
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    let attr = argument!(attr, "ibv_alloc_parent_domain: the attributes are NULL" => null);
    // SAFETY: the program's domains are live, or NULL.
    let (pd, td) = unsafe { (from_c::<PdObject>(attr.pd), from_c::<TdObject>(attr.td)) };
    let device = &context!(context, "ibv_alloc_parent_domain: the context is NULL" => null).device;
    let Some(pd) = pd else {
        return null(refuse(
            libc::EINVAL,
            "ibv_alloc_parent_domain: the protection domain is NULL",
        ));
    };
    let allocators = attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
    if attr.comp_mask & !KNOWN != 0
        || allocators && (attr.alloc.is_none() || attr.free.is_none())
        || !Arc::ptr_eq(device, pd.device())
        || td.is_some_and(|td| td.c.context != context)
    {
        return null(refuse(
            libc::EINVAL,
            format_args!(
                "ibv_alloc_parent_domain: comp_mask {:#x} has unknown bits, an allocator is NULL, or a domain is of another context",
                attr.comp_mask
            ),
        ));
    }
    let parents = Parents {
        _pd: pd.hold(),
        _td: td.map(|td| {
            td.users.fetch_add(1, Ordering::AcqRel);
            TdUse(Arc::clone(&td.users))
        }),
    };
    // The handle is that of the protection domain, which an import of it returns.
    // SAFETY: the program's domain is live, and not NULL as checked above.
    let handle = unsafe { (*attr.pd).handle };
    PdObject::create(context, pd.nested(), handle, Some(parents))
}
