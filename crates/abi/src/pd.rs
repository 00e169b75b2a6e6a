//! Protection domains.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use ferroce_device::Device;
use ferroce_device::transport::Pd;

use crate::context::context;
use crate::domain::Parents;
use crate::errno::refuse;
use crate::ffi::{ibv_context, ibv_pd};
use crate::import;
use crate::object::{Object, free, into_c, object};
use crate::provoke::provoke;
use crate::{nccl, unused};

/// `ibv_pd`: a protection domain, or a parent domain.
#[repr(C)]
pub(crate) struct PdObject {
    c: ibv_pd,
    domain: Arc<Domain>,
    /// The domains that a parent domain keeps busy.
    parents: Option<Parents>,
}

// SAFETY: `repr(C)`, and the C structure comes first.
unsafe impl Object for PdObject {
    type C = ibv_pd;
}

/// The part that all `ibv_pd` of one protection domain share: the allocated one and its
/// imports.
pub(crate) struct Domain {
    device: Arc<Device>,
    pd: Option<Arc<Pd>>,
    /// True if the domain frees `pd`; a parent domain uses the `Pd` of another.
    owned: bool,
    users: AtomicU32,
}

impl Domain {
    /// Returns the device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Some(pd) = self.pd.take().filter(|_| self.owned) {
            let _still_used_by_the_engine = self.device.dealloc_pd(pd);
        }
    }
}

/// A use of a protection domain by an object: until it is dropped, the domain is busy.
pub(crate) struct PdUse(Arc<Domain>);

impl Drop for PdUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl PdObject {
    /// Creates the program's object.
    pub(crate) fn create(
        context: *mut ibv_context,
        domain: Arc<Domain>,
        handle: u32,
        parents: Option<Parents>,
    ) -> *mut ibv_pd {
        into_c(Box::new(PdObject {
            c: ibv_pd { context, handle },
            domain,
            parents,
        }))
    }

    /// Returns the engine's domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        let pd = self.domain.pd.as_ref();
        pd.expect("a domain loses it only when it is dropped")
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.domain.device
    }

    /// Returns the context.
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.c.context
    }

    /// True if it is a parent domain.
    pub(crate) fn is_parent(&self) -> bool {
        self.parents.is_some()
    }

    /// Keeps the domain busy until the result is dropped.
    pub(crate) fn hold(&self) -> PdUse {
        self.domain.users.fetch_add(1, Ordering::AcqRel);
        PdUse(Arc::clone(&self.domain))
    }

    /// Returns a domain with the same `Pd` that counts its own users.
    pub(crate) fn nested(&self) -> Arc<Domain> {
        Arc::new(Domain {
            device: Arc::clone(self.device()),
            pd: Some(Arc::clone(self.pd())),
            owned: false,
            users: AtomicU32::new(0),
        })
    }
}

/// `ibv_alloc_pd`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    provoke!("ibv_alloc_pd" => null);
    let device = &context!(context, "ibv_alloc_pd: the context is NULL" => null).device;
    unused::prepares(device);
    nccl::tell();
    alloc_pd(context, device)
}

/// Allocates a protection domain, for the program or for ids of rdma_cm, in a context of
/// `device`.
pub(crate) fn alloc_pd(context: *mut ibv_context, device: &Arc<Device>) -> *mut ibv_pd {
    let domain = Arc::new(Domain {
        device: Arc::clone(device),
        pd: Some(device.alloc_pd()),
        owned: true,
        users: AtomicU32::new(0),
    });
    let handle = import::add_pd(&domain);
    PdObject::create(context, domain, handle, None)
}

/// `ibv_dealloc_pd`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    provoke!("ibv_dealloc_pd" => errno);
    let object = object!(pd as PdObject, "ibv_dealloc_pd: the protection domain is NULL" => errno);
    if object.domain.users.load(Ordering::Acquire) > 0 {
        return refuse(
            libc::EBUSY,
            "ibv_dealloc_pd: the protection domain still has memory regions, queue pairs or other objects",
        );
    }
    if object.parents.is_none() {
        import::remove(object.c.handle);
    }
    free!(pd as PdObject);
    0
}
