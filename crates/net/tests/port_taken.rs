//! Port 4791 in the hands of others.

mod common;

use std::net::Ipv4Addr;

use common::namespace::become_nobody;
use ferroce_net::{BindError, Holder, create_slot};
use ferroce_testnet::{isolated, isolated_as_root, role};
use socket2::{Domain, Socket, Type};

/// Somebody else's socket on the port.
fn squat(shared: bool) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
    socket.set_reuse_port(shared).expect("set");
    let address = std::net::SocketAddr::from((Ipv4Addr::UNSPECIFIED, 4791));
    socket.bind(&address.into()).expect("bound");
    socket
}

#[test]
fn a_process_that_has_the_port_is_named() {
    isolated("a_process_that_has_the_port_is_named", || {
        let squatter = squat(false);
        let error = create_slot(0).expect_err("the port is taken");
        let said = error.to_string();
        let pid = std::process::id();
        assert!(
            matches!(&error, BindError::PortTaken { holder: Holder::Process { pid: p, .. } } if *p == pid),
            "{said}"
        );
        assert!(said.contains("4791"), "{said}");
        assert!(said.contains(&format!("kill {pid}")), "{said}");
        drop(squatter);
        create_slot(0).expect("free again");
    });
}

/// Not a test: a process that has the port.
#[test]
fn squatter() {
    let mut held = Vec::new();
    while role::order().is_some() && role::hear().is_some() {
        held.push(squat(true));
        role::say("done");
    }
}

/// Sharing the port needs one user: root's group is closed to others.
#[test]
fn another_user_who_has_the_port_is_named() {
    isolated_as_root("another_user_who_has_the_port_is_named", || {
        let mut squatter = role::start("squatter", "", None);
        assert_eq!(squatter.ask("squat"), "done");
        #[allow(clippy::disallowed_methods, reason = "a thread may be another user")]
        let refused = std::thread::spawn(|| {
            become_nobody();
            create_slot(0).expect_err("the port is taken")
        });
        let error = refused.join().expect("refused");
        let said = error.to_string();
        assert!(
            matches!(
                error,
                BindError::PortTaken {
                    holder: Holder::OtherUser { uid: 0 }
                }
            ),
            "{said}"
        );
        assert!(
            said.contains("user 0") && said.contains("system-wide"),
            "{said}"
        );
    });
}
