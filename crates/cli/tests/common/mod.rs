//! Helpers of the command line's tests: commands under all names of the executable, and a
//! ferroced that ends with its test.
#![allow(dead_code, reason = "each test uses only a part")]

pub(crate) mod capture;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ferroce_control::{Request, find_daemon};
use ferroce_testnet::{deadline, isolated, netdev};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) const FERROCE: &str = env!("CARGO_BIN_EXE_ferroce");

/// Returns a command line whose first word is the name that ferroce is called by.
pub(crate) fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let name = words.next().expect("a name");
    let mut command = Command::new(FERROCE);
    command
        .arg0(format!("/somewhere/{name}"))
        .args(words)
        .env("FERROCE_CONFIG_DIR", config_dir())
        .stdin(Stdio::null());
    command
}

pub(crate) fn run(line: &str) -> Output {
    command(line).output().expect("ferroce starts")
}

/// Runs a command that must succeed without messages. Returns its output.
pub(crate) fn ok(line: &str) -> String {
    let output = run(line);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    assert_eq!(errors, "", "{line}");
    String::from_utf8(output.stdout).expect("text")
}

/// Runs a command that must fail with status 1. Returns its messages.
pub(crate) fn fails(line: &str) -> String {
    fails_with(1, line)
}

/// Runs a command that must fail with this status. Returns its messages.
pub(crate) fn fails_with(status: i32, line: &str) -> String {
    let output = run(line);
    let errors = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(status), "{line}: {errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{line}");
    errors
}

/// Returns the directory of the test's configuration. A test that is not isolated has none.
pub(crate) fn config_dir() -> PathBuf {
    let runtime = std::env::var_os("FERROCE_RUNTIME_DIR").unwrap_or("/nowhere".into());
    PathBuf::from(runtime).join("config")
}

/// Kills the ferroced of this network namespace with SIGKILL.
pub(crate) fn end_daemon() {
    let Ok(Some(connection)) = find_daemon() else {
        return;
    };
    let pid = connection.daemon_pid();
    drop(connection);
    let process = Pid::from_raw(pid.cast_signed()).expect("a process");
    let _it_may_be_gone = kill_process(process, Signal::KILL);
    // A running command may already have started the next ferroced.
    deadline::until("ferroced is gone", || {
        find_daemon().is_ok_and(|daemon| daemon.is_none_or(|next| next.daemon_pid() != pid))
    });
}

/// Kills the ferroced of the test on drop, also if the test fails.
pub(crate) struct Cleanup;

impl Drop for Cleanup {
    fn drop(&mut self) {
        end_daemon();
    }
}

/// Deletes all links on drop, and waits until their ferroced has ended. For tests of `ferroce run`: its
/// guard, which deletes the links later, would start a ferroced that was killed again, and would
/// not find its links once the directory of the test is gone.
pub(crate) struct DeleteLinks;

impl Drop for DeleteLinks {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return end_daemon();
        }
        deadline::until("the links are deleted", || {
            let Ok(Some(mut ferroced)) = find_daemon() else {
                return true;
            };
            for link in ferroced.links().unwrap_or_default() {
                // The guard may have deleted the link, and a program may still use it.
                let _later = ferroced.perform(&Request::LinkDelete {
                    name: link.name,
                    force: false,
                });
            }
            false
        });
    }
}

/// Adds a pair of connected netdevs. The first has an address.
pub(crate) fn cable(name: &str, far: &str, address: &str) {
    netdev::add_veth(name, far);
    netdev::add_address(name, address);
    netdev::set_up(name);
    netdev::set_up(far);
}

/// Runs a test in a network namespace of its own, if the libraries for programs are built.
pub(crate) fn with_libraries(name: &str, test: impl FnOnce()) {
    let folder = Path::new(FERROCE).with_file_name("lib");
    let all = ["libibverbs.so.1", "libferroce-preload.so", "bin/ferroce"];
    if all.iter().all(|file| folder.join(file).exists()) {
        return isolated(name, test);
    }
    let line = "*** SKIPPED: no libraries beside ferroce; `cargo xtask test` builds them ***";
    assert!(std::env::var_os("CI").is_none(), "{line}");
    eprintln!("{line}");
}

/// TCP port of `ibv_rc_pingpong`.
pub(crate) const PINGPONG_PORT: u16 = 18515;

/// Returns true if a socket in this network namespace listens on a TCP port.
pub(crate) fn is_listening(port: u16) -> bool {
    let (place, state) = (format!(":{port:04X} "), " 0A ");
    ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .any(|table| {
            table
                .lines()
                .any(|l| l.contains(&place) && l.contains(state))
        })
}
