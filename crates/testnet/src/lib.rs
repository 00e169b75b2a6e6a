//! Test networks: a network namespace for each test, veth pairs and addresses. They are
//! created with system calls and netlink, so that no tool has to be installed.
//!
//! ```no_run
//! #[test]
//! fn packets_cross_the_veth_pair() {
//!     ferroce_testnet::isolated("packets_cross_the_veth_pair", || {
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
pub mod signals;

pub use deadline::{readable, until};
pub use namespace::{isolated, isolated_as_root};
