//! Port 4791 in the hands of others.

mod common;

use std::net::Ipv4Addr;

use common::namespace::{self, As, again, isolated};
use ferroce_net::{BindError, Holder, create_slot};
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
    isolated("a_process_that_has_the_port_is_named", As::Admin, || {
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

/// Sharing the port needs one user: root's group is closed to others.
#[test]
fn another_user_who_has_the_port_is_named() {
    const NAME: &str = "another_user_who_has_the_port_is_named";
    const AS_OTHER: &str = "FERROCE_TEST_AS_OTHER";
    if std::env::var_os(AS_OTHER).is_some() {
        let error = create_slot(0).expect_err("the port is taken");
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
        return;
    }
    if !namespace::is_root() {
        return namespace::skip(NAME, "only root can become another user");
    }
    isolated(NAME, As::Admin, || {
        let _squatter = squat(true);
        again(NAME, &[(AS_OTHER, "1")], namespace::drop_privileges).expect("started");
    });
}
