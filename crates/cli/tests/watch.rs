//! `ferroce stat --prometheus` and `ferroce top`, on a real ferroced. The screen of `top` is that
//! of tmux.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{Cleanup, FERROCE, fails, fails_with, ok};
use ferroce_device::transport::{QpType, SendOp, WcStatus};
use ferroce_endpoint::{Endpoint, Options};
use ferroce_testnet::{deadline, isolated, netdev};

#[test]
fn stat_prints_open_metrics() {
    isolated("stat_prints_open_metrics", || {
        let _cleanup = Cleanup;
        assert!(ok("ferroce stat --prometheus").ends_with("# EOF\n"));
        netdev::set_up("lo");
        ok("ferroce link add rxe0 type rxe netdev lo");
        ok("ferroce link set rxe0 faults partition");
        let text = ok("ferroce stat --prometheus rxe0");
        for line in [
            "ferroce_link_info{link=\"rxe0\",netdev=\"lo\",type=\"rxe\"} 1",
            "ferroce_link_active{link=\"rxe0\"} 1",
            "ferroce_link_faulty{link=\"rxe0\"} 1",
            "ferroce_link_programs{link=\"rxe0\"} 0",
            "ferroce_link_rcvd_pkts_total{link=\"rxe0\"} 0",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
        let more = ok("ferroce stat --prometheus --processes");
        assert!(more.contains("# TYPE ferroce_program_sent_pkts counter\n"));
        fails("ferroce stat --prometheus rxe7");
        fails_with(2, "ferroce stat --prometheus --watch 1");
    });
}

/// A terminal of 80x24 that runs `ferroce top`. Its server ends when it is dropped.
struct Tmux {
    socket: PathBuf,
}

impl Tmux {
    /// Starts `ferroce top`, and a shell command after it. Returns none if tmux is not installed.
    fn start(arguments: &str) -> Option<Tmux> {
        let runtime = std::env::var_os("FERROCE_RUNTIME_DIR").expect("an isolated test");
        let socket = PathBuf::from(runtime).join("tmux");
        let tmux = Tmux { socket };
        let script = format!("{FERROCE} top {arguments}; echo left with $?; stty -a; exec cat");
        let line = [
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "80",
            "-y",
            "24",
        ];
        let started = tmux.command().args(line).arg(script).output();
        if let Ok(output) = started {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
            return Some(tmux);
        }
        let line = "*** SKIPPED: tmux, which is the terminal of `top`, is not installed ***";
        assert!(std::env::var_os("CI").is_none(), "{line}");
        eprintln!("{line}");
        None
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).env("TERM", "xterm");
        command
    }

    /// Presses keys: characters, or names such as `Down`.
    fn press(&self, keys: &[&str]) {
        let status = self.command().arg("send-keys").args(keys).status();
        assert!(status.expect("tmux starts").success(), "{keys:?}");
    }

    fn screen(&self) -> String {
        let output = self.command().args(["capture-pane", "-p"]).output();
        String::from_utf8(output.expect("tmux starts").stdout).expect("text")
    }

    /// Waits until the screen fulfils a condition. Returns the screen.
    fn until(&self, what: &str, mut fulfils: impl FnMut(&str) -> bool) -> String {
        let mut screen = String::new();
        let mut waiting = || {
            screen = self.screen();
            fulfils(&screen)
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            deadline::until(what, &mut waiting);
        }));
        if done.is_err() {
            panic!("{what}; the screen is\n{screen}");
        }
        screen
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _it_may_have_ended = self.command().arg("kill-server").output();
    }
}

fn connected() -> (Endpoint, Endpoint) {
    let open = || Endpoint::open("rxe0", Options::new(QpType::Rc, 1)).expect("a device");
    let (mut left, mut right) = (open(), open());
    let (to_right, to_left) = (right.introduction(), left.introduction());
    left.connect(&to_right.expect("known")).expect("connected");
    right.connect(&to_left.expect("known")).expect("connected");
    (left, right)
}

/// Returns the words of the row of a queue pair.
fn row(screen: &str, qpn: u32) -> Vec<&str> {
    let start = format!("{qpn:#08x}");
    let row = screen.lines().find(|line| line.starts_with(&start));
    row.map_or(Vec::new(), |row| row.split_whitespace().collect())
}

#[test]
fn top_shows_and_explains_queue_pairs() {
    isolated("top_shows_and_explains_queue_pairs", || {
        let _cleanup = Cleanup;
        netdev::set_up("lo");
        ok("ferroce link add rxe0 type rxe netdev lo");
        let (left, right) = connected();
        let (qpn, peer) = (left.qp.qpn(), right.qp.qpn());
        let Some(tmux) = Tmux::start("--interval 0.1") else {
            return;
        };
        // Rates: packets are sent until the screen shows some.
        let screen = tmux.until("a rate and a round trip", |screen| {
            left.write(1, 0, 10_000).expect("room");
            left.succeed(1).expect("written");
            let row = row(screen, qpn);
            row.len() == 12 && row[5] != "0" && row[10].ends_with("us")
        });
        assert!(
            screen.contains("1 link, 1 program, 2 queue pairs"),
            "{screen}"
        );
        assert!(screen.contains(" OLDEST\n"), "the last column: {screen}");
        let words = row(&screen, qpn);
        assert_eq!(words[1], std::process::id().to_string(), "{screen}");
        assert_eq!(words[3..5], ["RC", "RTS"], "{screen}");
        // Other tables.
        tmux.press(&["Tab"]);
        tmux.until("programs", |screen| screen.contains("[2 programs]"));
        tmux.press(&["3"]);
        let screen = tmux.until("links", |screen| screen.contains("[3 links]"));
        assert!(screen.contains("rxe0       lo         ACTIVE"), "{screen}");
        // A filter: nothing contains the first one, and both ends contain the second, because
        // wider screens show the peer.
        tmux.press(&["1", "/"]);
        tmux.press(&["-l", "zzz"]);
        tmux.press(&["Enter"]);
        tmux.until("no queue pair", |screen| {
            screen.contains("no queue pairs with `zzz`")
        });
        tmux.press(&["Escape", "/"]);
        tmux.press(&["-l", &format!("{qpn:#08x}")]);
        tmux.press(&["Enter"]);
        tmux.until("both ends", |screen| {
            !row(screen, qpn).is_empty() && !row(screen, peer).is_empty()
        });
        // A failure, explained.
        let (remote_addr, rkey) = left.remote(0);
        let wrong = SendOp::Write {
            remote_addr,
            rkey: rkey ^ 0xff00,
            imm: None,
        };
        left.post(5, wrong, 0, 8).expect("room");
        let failed = left.completions(1).expect("completed");
        assert_eq!(failed[0].status, WcStatus::RemoteAccess);
        tmux.until("the error", |screen| {
            row(screen, qpn).get(4) == Some(&"ERR")
        });
        // Both are idle, so the lower number comes first.
        tmux.until("no rates", |screen| {
            row(screen, qpn).get(5..7) == Some(&["0", "0"])
                && row(screen, peer).get(5..7) == Some(&["0", "0"])
        });
        tmux.press(&[if qpn < peer { "Home" } else { "End" }]);
        tmux.press(&["e"]);
        let screen = tmux.until("the reason", |screen| screen.contains("vendor_err 0x21"));
        assert!(screen.contains("remedy: look at the peer"), "{screen}");
        tmux.press(&["Escape"]);
        tmux.until("the table", |screen| !row(screen, qpn).is_empty());
        // The end: the terminal is as it was.
        tmux.press(&["q"]);
        let screen = tmux.until("the end", |screen| screen.contains("left with 0"));
        assert!(!screen.contains("[1 queue pairs]"), "{screen}");
        tmux.until("the mode of the terminal", |screen| {
            screen.contains(" icanon") && screen.contains(" echo ")
        });
    });
}

#[test]
fn top_without_a_terminal_names_the_alternative() {
    isolated("top_without_a_terminal_names_the_alternative", || {
        let error = fails("ferroce top");
        assert!(error.contains("ferroce stat --watch"), "{error}");
        let error = fails("ferroce top --interval 0");
        assert!(error.contains("use 0.05 to 3600"), "{error}");
    });
}
