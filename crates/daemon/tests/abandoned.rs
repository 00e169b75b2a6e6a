//! A ferroced in the background ends with a network namespace that nothing else uses.

mod common;

use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use common::add;
use ferroce_control::{find_daemon, runtime_dirs};
use ferroce_testnet::{deadline, isolated_as_root, namespace, netdev};

/// Environment variable of the process in the PID namespace.
const SECLUDED: &str = "FERROCE_TEST_SECLUDED";

/// Runs a test in a PID namespace of its own: elsewhere there may be processes that even
/// root may not inspect.
fn in_pid_namespace(name: &str, body: fn()) {
    isolated_as_root(name, || {
        if std::env::var_os(SECLUDED).is_some() {
            return body();
        }
        let status = Command::new("unshare")
            .args(["--mount-proc", "--pid", "--fork", "--kill-child", "--"])
            .arg(std::env::current_exe().expect("known"))
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env(SECLUDED, "1")
            .status();
        assert!(status.expect("unshare of util-linux").success());
    });
}

/// A namespace with a ferroced and a link in it.
struct Namespace {
    namespace: OwnedFd,
    ferroced: Child,
}

impl Namespace {
    fn new() -> Namespace {
        let namespace = namespace::another().expect("root may");
        let mut command = common::command();
        command.args(["--exit-when-unused", "--namespace-check-ms", "5"]);
        let inside = namespace.try_clone().expect("a descriptor");
        let ferroced = namespace::place(&mut command, inside).spawn();
        namespace::within(&namespace, || {
            // ferroced ends with its first client unless there is a link by then.
            let mut first = None;
            deadline::until("ferroced listens", || {
                first = find_daemon().ok().flatten();
                first.is_some()
            });
            add("rxe0", "lo").expect("a link");
        })
        .expect("there and back");
        Namespace {
            namespace,
            ferroced: ferroced.expect("ferroced starts"),
        }
    }

    /// Waits until ferroced has checked several times. Fails if it has ended.
    fn is_kept(&mut self) {
        let status = format!("/proc/{}/status", self.ferroced.id());
        let sleeps = || {
            let status = std::fs::read_to_string(&status).unwrap_or_default();
            let mut lines = status.lines();
            let line = lines.find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
            line.map_or(u64::MAX, |count| count.trim().parse().expect("a number"))
        };
        let before = sleeps();
        deadline::until("ferroced has looked", || {
            sleeps() > before.saturating_add(5)
        });
        let ended = self.ferroced.try_wait().expect("our child");
        assert!(ended.is_none(), "{ended:?}");
    }

    /// Leaves the namespace, and waits until ferroced has ended.
    fn abandon(mut self) {
        let dir = namespace::within(&self.namespace, || runtime_dirs().unwrap().remove(0));
        let dir = dir.expect("there and back");
        drop(self.namespace);
        deadline::until("ferroced ends", || {
            self.ferroced.try_wait().expect("our child").is_some()
        });
        assert!(!dir.path().exists(), "it has cleared up");
    }
}

/// Returns a shell that prints a line when it is ready, and waits until its input ends.
fn shell(script: &str) -> (Command, impl FnOnce(&mut Child)) {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--", "sh", "-ec"])
        .arg(format!("{script}\necho ready; read _ || true"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let ready = |child: &mut Child| {
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("text");
        assert_eq!(line, "ready\n");
    };
    (command, ready)
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    child.wait().expect("our child");
}

#[test]
fn descriptor_keeps_the_namespace() {
    in_pid_namespace("descriptor_keeps_the_namespace", || {
        let mut tenement = Namespace::new();
        tenement.is_kept();
        tenement.abandon();
    });
}

#[test]
fn process_keeps_the_namespace() {
    in_pid_namespace("process_keeps_the_namespace", || {
        let mut tenement = Namespace::new();
        let (mut command, ready) = shell("");
        let inside = tenement.namespace.try_clone().expect("a descriptor");
        let mut process = namespace::place(&mut command, inside).spawn().unwrap();
        drop(command);
        ready(&mut process);
        let here = namespace::another().expect("root may");
        let namespace = std::mem::replace(&mut tenement.namespace, here);
        drop(namespace);
        tenement.is_kept();
        end(process);
        deadline::until("ferroced ends", || {
            tenement.ferroced.try_wait().expect("our child").is_some()
        });
    });
}

/// The mount of `ip netns add`, in another mount namespace than ferroced's.
#[test]
fn mount_keeps_the_namespace() {
    in_pid_namespace("mount_keeps_the_namespace", || {
        let mut tenement = Namespace::new();
        let fd = tenement.namespace.as_raw_fd();
        let script = format!(
            "mount -t tmpfs tmpfs /mnt; : > /mnt/net; \
             mount --bind /proc/{}/fd/{fd} /mnt/net",
            std::process::id()
        );
        let (mut command, ready) = shell(&script);
        let mut process = command.spawn().expect("unshare of util-linux");
        ready(&mut process);
        let here = namespace::another().expect("root may");
        drop(std::mem::replace(&mut tenement.namespace, here));
        tenement.is_kept();
        end(process);
        deadline::until("ferroced ends", || {
            tenement.ferroced.try_wait().expect("our child").is_some()
        });
    });
}

/// After `ip netns del` the other end of the veth pair vanishes as well.
#[test]
fn netdevs_vanish_with_the_last_ferroced() {
    in_pid_namespace("netdevs_vanish_with_the_last_ferroced", || {
        let tenement = Namespace::new();
        netdev::add_veth("near", "far");
        netdev::move_to("far", &tenement.namespace);
        let exists = || {
            std::fs::read_to_string("/proc/net/dev")
                .unwrap()
                .contains("near")
        };
        assert!(exists());
        tenement.abandon();
        deadline::until("the cable is gone", || !exists());
    });
}
