//! The declarations of libibverbs's and librdmacm's headers, with C's names.
//!
//! Enumerations are integer types and constants, because a program may pass any value.
//! Anonymous unions and structures have names here: `imm` and `ext` in work requests and
//! completions, `src` and `dst` in addresses.

#![allow(missing_docs)] // the manual pages of libibverbs describe them
#![allow(non_camel_case_types, non_snake_case)] // C's names

mod ah;
mod comp_cntr;
mod context;
mod cq;
mod device;
mod event;
mod flow;
mod layout;
mod memory;
mod path;
mod port;
mod qp;
mod rdmacm;
mod rdmacm_layout;
mod scalar;
mod srq;
mod wq;
mod wr;

pub use ah::*;
pub use comp_cntr::*;
pub use context::*;
pub use cq::*;
pub use device::*;
pub use event::*;
pub use flow::*;
pub use layout::*;
pub use memory::*;
pub use path::*;
pub use port::*;
pub use qp::*;
pub use rdmacm::*;
pub use rdmacm_layout::*;
pub use scalar::*;
pub use srq::*;
pub use wq::*;
pub use wr::*;

/// Returns a C structure of zeros.
pub(crate) fn zeroed<T: Plain>() -> T {
    // SAFETY: `Plain` types are valid when all bytes are zero.
    unsafe { core::mem::zeroed() }
}

/// A C type for which zeros are a valid value.
///
/// # Safety
///
/// The type consists of integers, raw pointers, optional function pointers, and arrays,
/// structures and unions of those.
pub(crate) unsafe trait Plain {}
