//! The fields of `rdma_cm_id`, which program and library share.
//!
//! Threads of the program are in several calls on one id at a time, and one of them may take
//! the id's events. So the library never has a reference to the structure:
//!
//! - Pointer fields are atomics. A field that owns an object is emptied by [`Field::take`],
//!   so that one of two threads gets the object.
//! - `ps` and `qp_type` are written before the program gets the id.
//! - `route` and `port_num` are written field by field, by the thread that holds the lock of
//!   the id's [`Extra`].
//!
//! The program may read all fields at any time. A program that reads the route while another
//! of its threads resolves the id may find it half written, as with librdmacm.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::net::SocketAddr;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use ferroce_rdmacm::Path;

use super::address::{gid, storage};
use super::devices::CmDevice;
use super::id::Extra;
use super::{Outcome, path};
use crate::errno::refuse;
use crate::ffi::*;

/// The C structure of an id.
#[repr(transparent)]
pub(crate) struct Fields(UnsafeCell<rdma_cm_id>);

/// A field of type pointer.
pub(crate) struct Field<'a, T>(&'a AtomicPtr<T>);

impl<T> Field<'_, T> {
    pub(crate) fn get(&self) -> *mut T {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, value: *mut T) {
        self.0.store(value, Ordering::Release);
    }

    /// Sets the field if it is NULL.
    pub(crate) fn set_if_null(&self, value: *mut T) {
        let (ours, order) = (ptr::null_mut(), Ordering::AcqRel);
        let _kept = self
            .0
            .compare_exchange(ours, value, order, Ordering::Relaxed);
    }

    /// Returns the pointer and leaves NULL in the field.
    pub(crate) fn take(&self) -> *mut T {
        self.0.swap(ptr::null_mut(), Ordering::AcqRel)
    }
}

macro_rules! pointer_fields {
    ($($name:ident: $type:ty,)*) => {
        $(
            pub(crate) fn $name(&self) -> Field<'_, $type> {
                // SAFETY: the field is aligned and lives as long as `self`. All accesses of
                // the library are atomic; `new` initialized the field.
                Field(unsafe { AtomicPtr::from_ptr(&raw mut (*self.0.get()).$name) })
            }
        )*
    };
}

impl Fields {
    pub(crate) fn new(fields: rdma_cm_id) -> Fields {
        Fields(UnsafeCell::new(fields))
    }

    /// Returns the program's pointer.
    pub(crate) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.0.get()
    }

    pointer_fields! {
        verbs: ibv_context,
        channel: rdma_event_channel,
        context: c_void,
        qp: ibv_qp,
        event: rdma_cm_event,
        send_cq_channel: ibv_comp_channel,
        send_cq: ibv_cq,
        recv_cq_channel: ibv_comp_channel,
        recv_cq: ibv_cq,
        srq: ibv_srq,
        pd: ibv_pd,
    }

    pub(crate) fn qp_type(&self) -> ibv_qp_type {
        // SAFETY: the library writes the field in `new` only. This is a load without a
        // reference.
        unsafe { (&raw const (*self.0.get()).qp_type).read() }
    }

    /// Writes device, addresses and path. `_turn` shows that the caller holds the lock.
    pub(crate) fn set_route(
        &self,
        _turn: &mut Extra,
        device: Option<&CmDevice>,
        (local, peer): (Option<SocketAddr>, Option<SocketAddr>),
        path: Option<&Path>,
    ) -> Outcome {
        let c = self.0.get();
        if let Some(device) = device {
            self.verbs().set(device.verbs);
            self.pd().set_if_null(device.pd);
        }
        // SAFETY: `c` is the structure of this live object. Its lock makes this thread the
        // only one of the library in `route` and `port_num`. The places are written without
        // references to them, and every content of the unions is valid.
        unsafe {
            let route = &raw mut (*c).route;
            if device.is_some() {
                (*c).port_num = 1;
                (*route).addr.addr.ibaddr.pkey = 0xffff;
            }
            if let Some(local) = local {
                (*route).addr.src.src_storage = storage(local);
                if !local.ip().is_unspecified() {
                    (*route).addr.addr.ibaddr.sgid = gid(local.ip());
                }
            }
            if let Some(peer) = peer {
                (*route).addr.dst.dst_storage = storage(peer);
                (*route).addr.addr.ibaddr.dgid = gid(peer.ip());
            }
            let Some(path) = path else {
                return Ok(());
            };
            // Programs may free the record, so the C library allocates it.
            if (*route).path_rec.is_null() {
                let record = libc::calloc(1, size_of::<ibv_sa_path_rec>());
                if record.is_null() {
                    return Err(refuse(libc::ENOMEM, "the process has no memory left"));
                }
                (*route).path_rec = record.cast();
            }
            let addresses = (*route).addr.addr.ibaddr;
            (*route).path_rec.write(path::record(path, &addresses));
            (*route).num_paths = 1;
        }
        Ok(())
    }

    /// Frees the path record. `_turn` shows that the caller holds the lock.
    pub(crate) fn free_path(&self, _turn: &mut Extra) {
        // SAFETY: the lock makes this thread the only one of the library in `route`. The
        // record is NULL, or `set_route` allocated it; the field does not keep it.
        unsafe {
            let record = &raw mut (*self.0.get()).route.path_rec;
            libc::free(record.replace(ptr::null_mut()).cast());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_that_of_the_c_structure_and_is_taken_once() {
        let fields = Fields::new(zeroed());
        let (one, two) = (
            ptr::without_provenance_mut(8),
            ptr::without_provenance_mut(16),
        );
        fields.pd().set_if_null(one);
        fields.pd().set_if_null(two);
        fields.event().set(ptr::without_provenance_mut(24));
        // SAFETY: the structure is live, and no other thread uses it.
        let c = unsafe { *fields.as_ptr() };
        assert_eq!((c.pd, c.event.addr()), (one, 24));
        assert_eq!(fields.event().take().addr(), 24);
        assert!(fields.event().take().is_null());
    }

    #[test]
    fn path_record_is_allocated_once_and_freed() {
        let fields = Fields::new(zeroed());
        let mut extra = Extra::default();
        let addr = SocketAddr::from(([192, 0, 2, 1], 7471));
        let path = Path {
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
            mtu: 5,
            life_time: 0,
            speed_mbps: 0,
        };
        let records = [(); 2].map(|()| {
            let set = fields.set_route(&mut extra, None, (Some(addr), None), Some(&path));
            assert_eq!(set, Ok(()));
            // SAFETY: as above; the record is not NULL after the call.
            unsafe {
                (
                    (*fields.as_ptr()).route.path_rec,
                    (*(*fields.as_ptr()).route.path_rec).numb_path,
                )
            }
        });
        assert_eq!(records[0], records[1]);
        assert_eq!(records[0].1, 1);
        fields.free_path(&mut extra);
        // SAFETY: as above.
        assert!(unsafe { *fields.as_ptr() }.route.path_rec.is_null());
    }
}
