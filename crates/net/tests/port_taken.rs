//! Errors if another process has port 4791.

mod common;

use std::net::Ipv4Addr;

use common::namespace::become_nobody;
use ferroce_net::{BindError, Holder, create_slot};
use ferroce_testnet::{isolated, isolated_as_root, role};
use socket2::{Domain, Socket, Type};

/// Binds a socket to the port.
fn squat(shared: bool) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
    socket.set_reuse_port(shared).expect("set");
    let address = std::net::SocketAddr::from((Ipv4Addr::UNSPECIFIED, 4791));
    socket.bind(&address.into()).expect("bound");
    socket
}

#[test]
fn error_names_the_process_that_has_the_port() {
    isolated("error_names_the_process_that_has_the_port", || {
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

/// Role of a process that has the port; not a test by itself.
#[test]
fn squatter() {
    let mut held = Vec::new();
    while role::order().is_some() && role::hear().is_some() {
        held.push(squat(true));
        role::say("done");
    }
}

/// Only sockets of one user can share the port.
#[test]
fn error_names_the_user_who_has_the_port() {
    isolated_as_root("error_names_the_user_who_has_the_port", || {
        let mut squatter = role::start("squatter", "", None);
        assert_eq!(squatter.ask("squat"), "done");
        #[allow(clippy::disallowed_methods, reason = "a thread can have its own user")]
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
