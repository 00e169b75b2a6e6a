//! ferroced in another PID namespace than its programs, as in the containers of a pod. No
//! program has a PID there, and ferroced still tells them apart.

mod common;

use std::process::{Child, Command};

use common::holder::Holder;
use common::program::{CmClient, Program};
use common::{add, connect, dir, send};
use ferroce_cm::Closed;
use ferroce_control::{CmCall, Watch, find_daemon};
use ferroce_testnet::{deadline, isolated_as_root, role};

const PORT: u16 = 7174;
const LOOP: (&str, &str) = ("127.0.0.1", "127.0.0.1");

/// Returns the command of a ferroced in a PID namespace of its own.
fn in_pid_namespace() -> Command {
    let ferroced = common::command();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--"]);
    command
        .arg(ferroced.get_program())
        .args(ferroced.get_args())
        .env("FERROCE_LOG", "error");
    command
}

/// A ferroced in a PID namespace of its own. Killed when it is dropped.
struct InPidNamespace(Child);

impl InPidNamespace {
    fn start() -> InPidNamespace {
        let dir = dir();
        dir.create().expect("a runtime directory");
        let watch = Watch::new(dir.path()).expect("inotify");
        let in_pid_namespace =
            InPidNamespace(in_pid_namespace().spawn().expect("unshare of util-linux"));
        while find_daemon().expect("no other trouble").is_none() {
            deadline::readable(&watch, "ferroced's control socket");
            watch.clear();
        }
        in_pid_namespace
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        deadline::until("ferroced is gone", || {
            find_daemon().is_ok_and(|daemon| daemon.is_none())
        });
    }
}

impl Drop for InPidNamespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Role of a program that connects, prints its queue pair, and disconnects on request; not a
/// test by itself.
#[test]
fn connector() {
    let Some(_) = role::order() else { return };
    let mut program = Program::start("rxe0");
    let qpn = program.qpn(17);
    let conn = program.establish(LOOP, PORT, qpn).conn;
    role::say(&format!("{qpn}"));
    role::hear();
    program.cm.done(CmCall::Disconnect { conn });
    role::say("disconnected");
    role::hear();
}

#[test]
fn end_of_one_program_leaves_others_connected() {
    isolated_as_root("end_of_one_program_leaves_others_connected", || {
        let _ferroced = InPidNamespace::start();
        add("rxe0", "lo").unwrap();
        let mut server = CmClient::open();
        let port = server.listen("0.0.0.0", PORT);
        let mut established = |number| {
            let actor = role::start("connector", "", None);
            let (conn, _) = server.requested(port);
            server.accept(conn, number);
            server.established(conn);
            (actor, conn)
        };
        let (mut one, first) = established(18);
        let (mut two, second) = established(19);
        let (_, qpn) = (one.hear(), two.hear());
        // A ferroced that compares PIDs, which are all 0, would close all three connections.
        one.kill();
        let by = server.disconnected(first);
        assert_eq!(by, Closed::Peer { answer_owed: true });
        server.done(CmCall::Disconnect { conn: first });
        server.timewait_exited(first);

        // The queue pair belongs to another process, if the kernel identifies processes.
        let mut other = Program::start("rxe0");
        match other.connect(LOOP, PORT, qpn.parse().unwrap()) {
            Err(error) => assert!(error.to_string().contains("PID namespace"), "{error}"),
            Ok(_) => eprintln!("*** this kernel (before 6.9) cannot tell processes apart ***"),
        }
        assert_eq!(two.ask("disconnect"), "disconnected");
        let by = server.disconnected(second);
        assert_eq!(by, Closed::Peer { answer_owed: true });
    });
}

#[test]
fn programs_keep_their_slots_over_a_restart() {
    isolated_as_root("programs_keep_their_slots_over_a_restart", || {
        let mut ferroced = InPidNamespace::start();
        add("rxe0", "lo").unwrap();
        let mut one = Holder::start("rxe0", 1);
        let mut two = Holder::start("rxe0", 1);
        ferroced.kill();
        let _ferroced = InPidNamespace::start();
        one.resume();
        // The slot of a program that has not resumed yet is not assigned.
        let three = Holder::start("rxe0", 1);
        assert_eq!(three.slots, [3]);
        two.resume();
        for holder in [&mut one, &mut two] {
            let slot = holder.slots[0];
            send(slot, slot, "127.0.0.1");
            assert_eq!(holder.receive(), slot);
        }
        // The end of one program frees its slot and no other.
        let slot = two.slots[0];
        two.actor.kill();
        deadline::until("the slot is free", || {
            let counters = connect().counters(Some("rxe0"), true).expect("counted");
            let mut shares = counters.iter().filter_map(|c| c.process.as_ref());
            shares.all(|process| !process.slots.contains(&slot))
        });
        send(1, 77, "127.0.0.1");
        assert_eq!(one.receive(), 77);
    });
}

#[test]
fn pid_file_of_another_namespace_ends_no_process() {
    isolated_as_root("pid_file_of_another_namespace_ends_no_process", || {
        let _ferroced = InPidNamespace::start();
        let mut bystander = role::start("bystander", "", None);
        assert_eq!(bystander.hear(), "here");
        let file = dir().path().join("ferroced.pid");
        std::fs::write(file, format!("{}\n", bystander.pid())).unwrap();
        let replaced = in_pid_namespace().arg("--replace").output().unwrap();
        let errors = String::from_utf8_lossy(&replaced.stderr);
        assert!(errors.contains("in another PID namespace"), "{errors}");
        assert_eq!(bystander.ask("still there?"), "yes");
    });
}

/// Role of a process that has nothing to do with ferroced; not a test by itself.
#[test]
fn bystander() {
    let Some(_) = role::order() else { return };
    role::say("here");
    role::hear();
    role::say("yes");
}
