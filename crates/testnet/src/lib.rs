//! For tests: a network namespace for each test, virtual cables and addresses, made with
//! system calls and netlink, so that no tool has to be installed.
//!
//! ```no_run
//! #[test]
//! fn packets_cross_the_cable() {
//!     ferroce_testnet::isolated("packets_cross_the_cable", || {
//!         use ferroce_testnet::netdev;
//!         netdev::add_veth("left", "right");
//!         netdev::add_address("left", "10.0.0.1/24");
//!         netdev::set_up("left");
//!     });
//! }
//! ```

pub mod deadline;
pub mod namespace;
pub mod netdev;
pub mod netfilter;
mod netlink;
pub mod role;
pub mod sandbox;

pub use deadline::{readable, until};
pub use namespace::{isolated, isolated_as_root};
