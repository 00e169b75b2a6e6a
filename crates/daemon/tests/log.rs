//! Logging never blocks ferroced: a full disk or a reader that does not read loses messages
//! and nothing else.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};

use common::holder::Holder;
use common::{add, connect, dir, link, send};
use ferroce_control::{find_daemon, unix};
use ferroce_testnet::{deadline, isolated, isolated_as_root};
use rustix::net::SendFlags;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::UnshareFlags;

/// A ferroced in the background, which logs everything. Killed when it is dropped.
struct Background;

impl Background {
    fn start() -> Background {
        let status = Command::new(env!("CARGO_BIN_EXE_ferroced"))
            .env("FERROCE_LOG", "debug")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(status.expect("ferroced starts").success());
        Background
    }

    fn kill(&self) {
        let Ok(Some(connection)) = find_daemon() else {
            return;
        };
        let pid = Pid::from_raw(connection.daemon_pid().cast_signed());
        drop(connection);
        let _it_may_be_gone = kill_process(pid.expect("a process"), Signal::KILL);
        deadline::until("ferroced is gone", || {
            find_daemon().is_ok_and(|daemon| daemon.is_none())
        });
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Mounts a small file system at the runtime directory, in a private mount namespace.
fn small_runtime_dir() {
    // SAFETY: the call has no effect on the memory of other threads.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.expect("root may");
    let base = std::env::var_os("FERROCE_RUNTIME_DIR").expect("set for each test");
    let mount = |arguments: &[&str], target: &std::ffi::OsStr| {
        let done = Command::new("mount").args(arguments).arg(target).status();
        assert!(done.expect("mount starts").success());
    };
    mount(&["--make-rprivate"], "/".as_ref());
    let options = ["-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs"];
    mount(&options, &base);
}

fn fill_runtime_dir() {
    let mut file = File::create(dir().path().join("ballast")).unwrap();
    for size in [4096, 1] {
        let block = vec![b'x'; size];
        while file.write_all(&block).is_ok() {}
    }
}

#[test]
fn full_disk_loses_only_messages() {
    isolated_as_root("full_disk_loses_only_messages", || {
        small_runtime_dir();
        let ferroced = Background::start();
        add("rxe0", "lo").unwrap();
        let mut one = Holder::start("rxe0", 1);
        fill_runtime_dir();
        let mut two = Holder::start("rxe0", 1);
        let pid = connect().daemon_pid();
        // The next ferroced restores links and owners.
        ferroced.kill();
        let _ferroced = Background::start();
        assert_ne!(connect().daemon_pid(), pid);
        assert_eq!(link("rxe0").name, "rxe0");
        one.resume();
        let three = Holder::start("rxe0", 1);
        assert_eq!(three.slots, [3], "the second has not come back yet");
        two.resume();
        for holder in [&mut one, &mut two] {
            let slot = holder.slots[0];
            send(slot, slot, "127.0.0.1");
            assert_eq!(holder.receive(), slot);
        }
    });
}

/// Connects `times` times and sends an invalid message each time.
fn send_garbage(times: u32) {
    for _ in 0..times {
        let socket = unix::connect(&dir().socket()).expect("ferroced listens");
        let _closed = rustix::net::send(&socket, b"garbage", SendFlags::NOSIGNAL);
    }
}

#[test]
fn log_is_bounded() {
    isolated("log_is_bounded", || {
        let _ferroced = Background::start();
        let length = |name: &str| {
            let metadata = fs::metadata(dir().path().join(name));
            metadata.map_or(0, |metadata| metadata.len())
        };
        let limit = 512 << 10;
        // Until the log has been rotated twice.
        let mut begun = 0;
        let mut before = 0;
        while begun < 2 {
            send_garbage(100);
            assert_eq!(connect().links().unwrap().len(), 0);
            let now = length("ferroced.log");
            assert!(now <= limit, "{now}");
            begun += u32::from(now < before);
            before = now;
        }
        let old = length("ferroced.old");
        assert!((limit / 2..=limit).contains(&old), "{old}");
    });
}

#[test]
fn blocked_reader_of_the_log_blocks_no_client() {
    isolated("blocked_reader_of_the_log_blocks_no_client", || {
        dir().create().unwrap();
        let mut ferroced = common::command()
            .env("FERROCE_LOG", "debug")
            .stderr(Stdio::piped())
            .spawn()
            .expect("ferroced starts");
        deadline::until("ferroced listens", || {
            find_daemon().is_ok_and(|daemon| daemon.is_some())
        });
        // A pipe holds 64 KiB; each of these is some hundred bytes in the log.
        for _ in 0..20 {
            send_garbage(100);
            assert_eq!(connect().links().unwrap().len(), 0);
        }
        ferroced.kill().unwrap();
        ferroced.wait().unwrap();
    });
}

#[test]
fn wrong_filter_is_named_with_the_remedy() {
    isolated("wrong_filter_is_named_with_the_remedy", || {
        let output = Command::new(env!("CARGO_BIN_EXE_ferroced"))
            .env("FERROCE_LOG", "debgu")
            .stdin(Stdio::null())
            .output()
            .expect("ferroced starts");
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("FERROCE_LOG: `debgu`") && said.contains("debug"),
            "{said}"
        );
    });
}
