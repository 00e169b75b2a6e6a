//! `ferroce link` and `ferroce stat`: exact output, and a ferroced that starts and ends by
//! itself.

mod common;

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Stdio;

use ferroce_control::path::SOCKET;
use ferroce_control::start::start;
use ferroce_control::{PAGE_HEADER, attach, find_daemon, find_or_start, runtime_dirs, unix};
use ferroce_testnet::{deadline, isolated, netdev};
use rustix::net::{Shutdown, shutdown};

use common::{Cleanup, FERROCE, command, end_daemon, fails, fails_with, ok};

fn dir() -> PathBuf {
    runtime_dirs().expect("known")[0].path().to_owned()
}

fn daemon_pid() -> u32 {
    find_daemon()
        .expect("reachable")
        .expect("running")
        .daemon_pid()
}

#[test]
fn link_is_added_shown_and_deleted() {
    isolated("link_is_added_shown_and_deleted", || {
        let _cleanup = Cleanup;
        assert_eq!(ok("ferroce link"), "", "no link, no daemon, no complaint");
        assert_eq!(ok("ferroce -j link show"), "[]\n");
        assert_eq!(ok("ferroce link add rxe0 type rxe netdev lo"), "");
        let line = "link rxe0/1 state ACTIVE physical_state LINK_UP netdev lo \n";
        for command in [
            "link",
            "link show",
            "link show rxe0",
            "link show rxe0/1",
            "li sh",
            "link list",
        ] {
            assert_eq!(ok(&format!("ferroce {command}")), line, "{command}");
        }
        let json = concat!(
            r#"[{"ifindex":0,"ifname":"rxe0","port":1,"state":"ACTIVE","#,
            r#""physical_state":"LINK_UP","netdev":"lo","netdev_index":1}]"#,
            "\n"
        );
        assert_eq!(ok("ferroce -j link"), json);
        assert_eq!(ok("ferroce link show -j"), json);
        assert_eq!(ok("ferroce link show rxe0/1 -j"), json);
        assert_eq!(
            ok("ferroce -d link"),
            "link rxe0/1 state ACTIVE physical_state LINK_UP netdev lo netdev_index 1 \n    \
             mtu 4096 netdev_mtu 65536 speed 25000 crc on \n    \
             gid 0 ::1 netdev lo \n    \
             gid 1 127.0.0.1 netdev lo \n"
        );
        assert_eq!(ok("ferroce link delete rxe0"), "");
        deadline::until("nothing is left", || !dir().exists());
    });
}

#[test]
fn link_follows_the_state_of_its_netdev() {
    isolated("link_follows_the_state_of_its_netdev", || {
        let _cleanup = Cleanup;
        netdev::add_veth("near", "far");
        netdev::add_address("near", "10.0.0.1/24");
        netdev::set_mtu("near", 9000);
        ok("ferroce link add rxe_near type rxe netdev near mtu 1024 crc off");
        ok("ferroce link add rxe1 type rxe netdev lo");
        let index = netdev::index("near");
        assert_eq!(
            ok("ferroce link"),
            "link rxe_near/1 state DOWN physical_state DISABLED netdev near \n\
             link rxe1/1 state ACTIVE physical_state LINK_UP netdev lo \n"
        );
        netdev::set_up("near");
        let line = "link rxe_near/1 state DOWN physical_state POLLING netdev near \n";
        assert_eq!(
            ok("ferroce link show rxe_near"),
            line,
            "known by the next command"
        );
        netdev::set_up("far");
        deadline::until("the cable is up", || {
            ok("ferroce link show rxe_near").contains("state ACTIVE physical_state LINK_UP")
        });
        deadline::until("the link-local address is listed", || {
            ok("ferroce -d link show rxe_near").contains("gid 0 fe80")
        });
        let details = ok("ferroce -d link show rxe_near");
        let expected = format!(
            "netdev_index {index} \n    mtu 1024 netdev_mtu 9000 speed 10000 crc off \n    gid 0 fe80"
        );
        assert!(details.contains(&expected), "{details}");
        assert!(
            details.contains("\n    gid 1 10.0.0.1 netdev near \n"),
            "{details}"
        );
        let lid = |value: u16| format!("{:<24}{value}\n", "port_lid:");
        assert!(ok("ferroce devinfo rxe_near").contains(&lid(0)), "as rxe");
        ok("ferroce link set rxe_near lids on");
        assert!(ok("ferroce devinfo rxe_near").contains(&lid(1)));
        assert!(ok("ferroce -d link show rxe_near").contains(" crc off lids on "));
        assert!(ok("ferroce -dj link show rxe_near").contains(r#""lids":true"#));
        ok("ferroce link set rxe_near patience 60");
        assert!(ok("ferroce -d link show rxe_near").contains(" lids on patience 60 "));
        assert!(ok("ferroce -dj link show rxe_near").contains(r#""patience":60"#));
        ok("ferroce link set rxe_near patience 0");
        ok("ferroce link set rxe_near lids off");
        assert!(ok("ferroce devinfo rxe_near").contains(&lid(0)));
        assert!(!ok("ferroce -d link show rxe_near").contains("lids"));
        netdev::delete("near");
        assert_eq!(
            ok("ferroce link"),
            "link rxe1/1 state ACTIVE physical_state LINK_UP netdev lo \n"
        );
        let json = ok("ferroce -j link");
        assert!(
            json.starts_with(r#"[{"ifindex":1,"ifname":"rxe1","#),
            "{json}"
        );
    });
}

#[test]
fn errors_name_the_cause_and_the_remedy() {
    isolated("errors_name_the_cause_and_the_remedy", || {
        let _cleanup = Cleanup;
        netdev::add_veth("near", "far");
        for (line, complaint) in [
            ("link delete rxe0", "no ferroced runs"),
            (
                "link show rxe0",
                "error: Wrong device name: link rxe0 does not exist; there are no links;",
            ),
            ("stat rxe0", "link rxe0 does not exist"),
            (
                "link add rxe0 type rxe",
                "error: `netdev` is missing; usage: ferroce link add NAME",
            ),
            (
                "link add rx/e0 type rxe netdev lo",
                "error: link name `rx/e0` is not valid",
            ),
            (
                "link add rxe0 type rxe netdev eth7",
                "error: No such device: netdev eth7 does not exist; existing netdevs: lo, far, near",
            ),
            (
                "link add rxe0 type rxe netdev near",
                "error: Cannot assign requested address: netdev near has no IP address",
            ),
            (
                "link add siw0 type siw netdev lo mtu 1024",
                "error: Invalid argument: type siw has no option mtu",
            ),
            (
                "link add rxe0 type rxe netdev lo mtu 1500",
                "error: Invalid argument: mtu 1500 is not one of 256, 512, 1024, 2048, 4096",
            ),
        ] {
            let said = fails(&format!("ferroce {line}"));
            assert!(said.contains(complaint), "ferroce {line}: {said}");
        }
        deadline::until("nothing is left", || !dir().exists());
        ok("ferroce link add rxe0 type rxe netdev lo");
        let said = fails("ferroce link add rxe1 type rxe netdev lo");
        assert_eq!(
            said,
            "error: File exists: netdev lo already has link rxe0 \
             (`ferroce link delete rxe0` removes it)\n"
        );
        let said = fails("ferroce link show rxe7");
        assert_eq!(
            said,
            "error: Wrong device name: link rxe7 does not exist; existing links: rxe0\n"
        );
        for (line, complaint) in [
            (
                "ferroce frobnicate",
                "unrecognized subcommand 'frobnicate'; known are ",
            ),
            (
                "ferroce link frobnicate",
                "unrecognized subcommand 'frobnicate'; known are add, set, delete, show",
            ),
            (
                "ferroce -j config frobnicate",
                "unrecognized subcommand 'frobnicate'; known are show, check, save, forget",
            ),
            ("ferroce link show --frob", "unexpected argument '--frob'"),
            ("ferroce stat rxe0 --watch often", "invalid value 'often'"),
            ("ferroced --frob", "unexpected argument '--frob'"),
        ] {
            let said = fails_with(2, line);
            assert!(said.contains(complaint), "{line}: {said}");
        }
        let said = fails("ferroced --group nobodys");
        assert_eq!(
            said,
            "error: there is no group `nobodys`; `getent group` lists the groups\n"
        );
    });
}

#[test]
fn counters_have_rxes_names() {
    isolated("counters_have_rxes_names", || {
        let _cleanup = Cleanup;
        assert_eq!(ok("ferroce stat"), "");
        ok("ferroce link add rxe0 type rxe netdev lo");
        let expected = "link rxe0/1 sent_pkts 0 rcvd_pkts 0 duplicate_request 0 \
             out_of_seq_request 0 rcvd_rnr_err 0 send_rnr_err 0 rcvd_seq_err 0 ack_deferred 0 \
             retry_exceeded_err 0 retry_rnr_exceeded_err 0 completer_retry_err 0 send_err 0 \
             link_downed 0 rdma_sends 0 rdma_recvs 0 sent_bytes 0 rcvd_bytes 0 ";
        assert!(
            ok("ferroce stat rxe0").starts_with(expected),
            "{}",
            ok("ferroce stat rxe0")
        );
        assert_eq!(ok("ferroce stat"), ok("ferroce statistic show link rxe0/1"));
        let user = attach("rxe0", 1).expect("attached");
        let counters = user.slots[0].counters.as_fd();
        rustix::io::pwrite(counters, &5u64.to_ne_bytes(), PAGE_HEADER as u64).unwrap();
        let json = ok("ferroce -j stat rxe0");
        let expected = r#"[{"ifname":"rxe0","port":1,"sent_pkts":5,"rcvd_pkts":0,"#;
        assert!(json.starts_with(expected), "{json}");
        let lines = ok("ferroce stat rxe0 --processes");
        let pid = format!("link rxe0/1 pid {} comm ", std::process::id());
        let mine = lines.lines().find(|line| line.starts_with(&pid));
        assert!(mine.expect("our line").contains(" sent_pkts 5 "), "{lines}");
        // Nothing reads the socket of the slot, so it overflows.
        let mut packet = [0; 60_000];
        packet[5] = user.slots[0].slot;
        #[allow(clippy::disallowed_methods, reason = "an ordinary peer")]
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        // Root's buffer is the longest, with 16 MiB.
        for _ in 0..400 {
            socket.send_to(&packet, ("127.0.0.1", 4791)).expect("sent");
        }
        let counters = ok("ferroce stat rxe0");
        let (_, overflows) = counters
            .split_once(" rx_socket_overflow ")
            .expect(&counters);
        assert!(!overflows.starts_with("0 "), "{counters}");
        assert_eq!(counters, ok("rdma statistic show link rxe0/1"));
        let said = fails("ferroce link delete rxe0");
        assert!(
            said.starts_with("error: Device or resource busy: link rxe0 is in use by"),
            "{said}"
        );
        assert!(said.contains(&std::process::id().to_string()), "{said}");
        ok("ferroce link delete rxe0 --force");
    });
}

/// The next command after `kill -9` finds the same links.
#[test]
fn next_command_restarts_a_killed_ferroced() {
    isolated("next_command_restarts_a_killed_ferroced", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let before = daemon_pid();
        end_daemon();
        let line = "link rxe0/1 state ACTIVE physical_state LINK_UP netdev lo \n";
        assert_eq!(ok("ferroce link"), line);
        assert_ne!(daemon_pid(), before);
        end_daemon();
        assert_eq!(ok("ferroce link delete rxe0"), "");
        deadline::until("nothing is left", || !dir().exists());
    });
}

/// Several commands at the same time start one ferroced, and all of them find it.
#[test]
fn concurrent_commands_start_one_ferroced() {
    isolated("concurrent_commands_start_one_ferroced", || {
        let _cleanup = Cleanup;
        for n in 0..6 {
            netdev::add_veth(&format!("a{n}"), &format!("b{n}"));
            netdev::add_address(&format!("a{n}"), &format!("10.0.{n}.1/24"));
        }
        let commands: Vec<_> = (0..6)
            .map(|n| {
                let line = format!("ferroce link add rxe{n} type rxe netdev a{n}");
                command(&line)
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("ferroce starts")
            })
            .collect();
        for command in commands {
            let output = command.wait_with_output().expect("our child");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
        }
        assert_eq!(ok("ferroce link").lines().count(), 6);
    });
}

/// A second ferroced connects to see whether one runs, and hangs up. That connection is not
/// a client, so the first ferroced stays.
#[test]
fn connection_without_hello_does_not_end_ferroced() {
    isolated("connection_without_hello_does_not_end_ferroced", || {
        let _cleanup = Cleanup;
        start(FERROCE.as_ref()).expect("ferroced starts");
        let stranger = unix::connect(&dir().join(SOCKET)).expect("it listens");
        shutdown(&stranger, Shutdown::Write).expect("ours");
        deadline::readable(&stranger, "ferroced closes the connection");
        assert!(find_daemon().expect("reachable").is_some());
    });
}

/// Each thread finds or starts a ferroced and disconnects at once, so that ferroced ends
/// while other threads are about to connect.
#[test]
#[allow(clippy::disallowed_methods, reason = "needs real concurrency")]
fn ferroced_that_ends_at_any_time_is_found_or_started() {
    isolated("ferroced_that_ends_at_any_time_is_found_or_started", || {
        let _cleanup = Cleanup;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        find_or_start(FERROCE.as_ref()).expect("a connection");
                    }
                });
            }
        });
    });
}

#[test]
fn error_states_its_cause_once() {
    let output = command("ferroce link add rxe0 type rxe netdev lo")
        .env("FERROCE_RUNTIME_DIR", "/nonexistent/dir")
        .output()
        .expect("ferroce starts");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: cannot start ferroced: cannot create /nonexistent/dir: \
         No such file or directory (os error 2)\n"
    );
}

#[test]
fn help_has_examples_and_environment() {
    let help = ok("ferroce link add --help");
    for part in ["netdev IF", "mtu N", "crc on|off", "EXAMPLES", "type siw"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    assert!(ok("ferroce --help").contains("FERROCE_RUNTIME_DIR"));
    for command in [
        "capture",
        "config",
        "config show",
        "config check",
        "config save",
        "config forget",
        "config apply",
        "config path",
        "demo",
        "devinfo",
        "doctor",
        "explain",
        "gids",
        "link",
        "link add",
        "link set",
        "link delete",
        "link show",
        "ping",
        "resource",
        "run",
        "shell",
        "stat",
        "top",
    ] {
        let help = ok(&format!("ferroce {command} --help"));
        assert!(help.contains("EXAMPLES\n    "), "{command}: {help}");
    }
}
