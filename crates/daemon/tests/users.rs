//! Several users: one ferroced each, or root's for a group.

mod common;

use std::fs;
use std::os::unix::process::CommandExt;

use common::holder::Holder;
use common::{Ferroced, add, connect, dir};
use ferroce_control::protocol::CaptureOptions;
use ferroce_testnet::{deadline, isolated_as_root, role};

/// UIDs and GIDs, which need no entry in /etc/passwd.
const ANN: (u32, u32) = (60_001, 60_001);
const BOB: (u32, u32) = (60_002, 60_002);
const MEMBERS: u32 = 60_100;

/// Role of another user, who prints the result of each step; not a test by itself.
#[test]
fn other_user() {
    let Some(order) = role::order() else { return };
    for step in order.split(',') {
        let result = match step {
            "add" => add("rxe0", "lo"),
            "show" => ferroce_control::list_links().map(|links| {
                role::say(&format!("{} links", links.len()));
            }),
            "attach" => ferroce_control::attach("rxe0", 1).map(drop),
            capture if capture.starts_with("capture ") => connect().capture(CaptureOptions {
                pid: capture["capture ".len()..].parse().ok(),
                snap: 64,
                ..CaptureOptions::default()
            }),
            other => panic!("{other}?"),
        };
        match result {
            Ok(()) => role::say(&format!("{step} ok")),
            Err(error) => role::say(&format!("{step} {} {error}", error.errno())),
        }
    }
}

fn ask(order: &str, user: (u32, u32)) -> role::Actor {
    role::start("other_user", order, Some(user))
}

#[test]
fn ordinary_user_needs_no_root() {
    isolated_as_root("ordinary_user_needs_no_root", || {
        let base = std::path::PathBuf::from(std::env::var_os("FERROCE_RUNTIME_DIR").unwrap());
        // A directory of Ann's beside that of the test.
        fs::remove_dir_all(&base).unwrap();
        fs::create_dir(&base).unwrap();
        std::os::unix::fs::chown(&base, Some(ANN.0), Some(ANN.1)).unwrap();
        let mut ferroced = common::command()
            .uid(ANN.0)
            .gid(ANN.1)
            .spawn()
            .expect("ferroced starts");
        deadline::until("Ann's ferroced listens", || dir().socket().exists());
        let mut ann = ask("add,attach,show", ANN);
        assert_eq!(ann.hear(), "add ok");
        assert_eq!(ann.hear(), "attach ok");
        assert_eq!(ann.hear(), "1 links");
        let mode = fs::metadata(dir().path()).unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_eq!((mode.uid(), mode.mode() & 0o777), (ANN.0, 0o700));

        // The directory denies access to Bob, and Bob would not trust Ann's socket.
        let mut bob = ask("show", BOB);
        let said = bob.hear();
        assert!(said.starts_with("show 13 "), "{said}");
        ferroced.kill().unwrap();
        ferroced.wait().unwrap();
    });
}

#[test]
fn ferroced_of_root_serves_a_group() {
    isolated_as_root("ferroced_of_root_serves_a_group", || {
        let _ferroced = Ferroced::start_with(&["--group", &MEMBERS.to_string()]);
        add("rxe0", "lo").unwrap();
        let mut ann = ask("show,add", (ANN.0, MEMBERS));
        assert_eq!(ann.hear(), "1 links");
        assert_eq!(ann.hear(), "show ok");
        let said = ann.hear();
        assert!(said.starts_with("add 1 "), "{said}");
        let expected = "this ferroced lets only root add links; you are user 60001";
        assert!(said.ends_with(expected), "{said}");

        let mut member = Holder::start_as("rxe0", 1, Some((ANN.0, MEMBERS))).unwrap();
        common::send(member.slots[0], 42, "127.0.0.1");
        assert_eq!(member.receive(), 42);

        // Members do not see each other's packets.
        let counters = connect().counters(Some("rxe0"), true).unwrap();
        let pid = counters[1].process.as_ref().unwrap().pid;
        let order = format!("capture {pid}");
        let mut bob = ask(&order, (BOB.0, MEMBERS));
        let said = bob.hear();
        assert!(said.starts_with(&format!("{order} 1 ")), "{said}");
        let expected = format!("process {pid} belongs to user 60001, and you are user 60002");
        assert!(said.contains(&expected), "{said}");
        let mut ann = ask(&order, (ANN.0, MEMBERS));
        assert_eq!(ann.hear(), format!("{order} ok"));

        let mut bob = ask("attach", BOB);
        let said = bob.hear();
        assert!(said.starts_with("attach 13 "), "{said}");
        assert!(said.contains("members of its group"), "{said}");
        assert_eq!(connect().links().unwrap().len(), 1);
    });
}

/// ferroced checks SO_PEERCRED in addition to the permissions of the socket.
#[test]
fn peers_are_checked_even_if_the_socket_is_open() {
    isolated_as_root("peers_are_checked_even_if_the_socket_is_open", || {
        use std::os::unix::fs::PermissionsExt;
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        fs::set_permissions(dir().socket(), fs::Permissions::from_mode(0o666)).unwrap();
        let mut bob = ask("show", BOB);
        let said = bob.hear();
        assert!(
            said.starts_with("show 13 Permission denied: this ferroced serves"),
            "{said}"
        );
        assert!(said.ends_with("not user 60002"), "{said}");
    });
}

/// Programs of other users can resume with root's ferroced.
#[test]
fn members_resume_after_a_restart() {
    isolated_as_root("members_resume_after_a_restart", || {
        let group = MEMBERS.to_string();
        let mut ferroced = Ferroced::start_with(&["--group", &group]);
        add("rxe0", "lo").unwrap();
        let mut ann = Holder::start_as("rxe0", 1, Some((ANN.0, MEMBERS))).unwrap();
        let mut bob = Holder::start_as("rxe0", 1, Some((BOB.0, MEMBERS))).unwrap();
        ferroced.kill();
        let _ferroced = Ferroced::start_with(&["--group", &group]);
        bob.resume();
        ann.resume();
        for holder in [&mut ann, &mut bob] {
            let slot = holder.slots[0];
            common::send(slot, slot, "127.0.0.1");
            assert_eq!(holder.receive(), slot);
        }
        let mut newcomer = Holder::start_as("rxe0", 1, Some((BOB.0, MEMBERS))).unwrap();
        assert_eq!(newcomer.slots, [3]);
        common::send(3, 3, "127.0.0.1");
        assert_eq!(newcomer.receive(), 3);
    });
}

/// Only one user can have the port in a network namespace.
#[test]
fn error_names_the_user_who_has_the_port() {
    isolated_as_root("error_names_the_user_who_has_the_port", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let base = std::env::temp_dir().join(format!("ferroce-ann-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        fs::create_dir(&base).unwrap();
        std::os::unix::fs::chown(&base, Some(ANN.0), Some(ANN.1)).unwrap();
        // From here on this process uses Ann's directory.
        // SAFETY: this process runs one test, and its other threads read no variables.
        unsafe { std::env::set_var("FERROCE_RUNTIME_DIR", &base) };
        let mut anns = common::command()
            .uid(ANN.0)
            .gid(ANN.1)
            .spawn()
            .expect("ferroced starts");
        deadline::until("Ann's ferroced listens", || dir().socket().exists());
        let mut ann = ask("add", ANN);
        let said = ann.hear();
        anns.kill().unwrap();
        anns.wait().unwrap();
        fs::remove_dir_all(&base).unwrap();
        assert!(said.starts_with("add 98 "), "{said}");
        assert!(said.contains("4791"), "{said}");
        assert!(said.contains("user 0 has it"), "{said}");
    });
}
