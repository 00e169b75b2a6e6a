//! All exported functions, for tests in Rust.

pub use crate::ah::*;
pub use crate::async_events::*;
pub use crate::buf::*;
pub use crate::channel::*;
pub use crate::cq::*;
pub use crate::device_list::*;
pub use crate::gids::*;
pub use crate::import::*;
pub use crate::mcast::*;
pub use crate::mr::*;
pub use crate::newer::*;
pub use crate::pd::*;
pub use crate::qp::*;
pub use crate::qp_create::*;
pub use crate::query::*;
pub use crate::rdmacm::*;
pub use crate::rsocket::*;
pub use crate::srq::*;
