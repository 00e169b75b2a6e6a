//! What a program does besides: fork, exec, signals, and nothing at all.

use std::fs;
use std::process::Command;
use std::time::Duration;

use ferroce_device::transport::{QpState, QpType, WcStatus};
use ferroce_device::{Device, ProcessMemory};
use ferroce_testnet::{deadline, netdev, role};
use rustix::io::{FdFlags, fcntl_getfd};

use crate::support::{Endpoint, Ferroced, LINK, Puppet, V4, on_loopback, pair, pattern};

fn works(ours: &Endpoint, theirs: &mut Puppet, seed: u32) {
    ours.put(0, &pattern(seed, 100_000));
    ours.write(1, 0, 100_000);
    ours.succeed(1);
    theirs.expect(&format!("check {seed} 0 100000"), "right");
}

#[test]
fn children_come_and_go() {
    on_loopback("process::children_come_and_go", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        works(&ours, &mut theirs, 1);
        for seed in 2..5 {
            // One that executes another program.
            let status = Command::new("/bin/true").status().expect("it exists");
            assert!(status.success());
            works(&ours, &mut theirs, seed);
            // One that ends, with all that runs at exit.
            // SAFETY: the child does nothing but end, which takes no lock that another
            // thread may hold: ours run no code that does.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(7) };
            }
            works(&ours, &mut theirs, seed + 10);
            let mut status = 0;
            // SAFETY: waits for our own child.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!((waited, libc::WEXITSTATUS(status)), (child, 7));
            works(&ours, &mut theirs, seed + 20);
        }
    });
}

#[test]
fn a_child_that_closes_a_device_leaves_the_parents_alone() {
    let name = "process::a_child_that_closes_a_device_leaves_the_parents_alone";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        let device = Device::open(LINK).expect("the link is there");
        // SAFETY: the child only closes a device, whose lock nobody holds.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child if it hangs, and at once if it does not.
            unsafe {
                libc::alarm(10);
                drop(device);
                libc::_exit(7);
            }
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(
            (waited, libc::WEXITSTATUS(status)),
            (child, 7),
            "{status:#x}"
        );
        works(&ours, &mut theirs, 1);
        netdev::set_down("lo");
        deadline::readable(device.events().fd(), "the parent hears of its link");
    });
}

/// A child that neither executes anything nor ends, and so keeps copies of all that we have.
#[test]
fn a_child_lives_on() {
    on_loopback("process::a_child_lives_on", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        works(&ours, &mut theirs, 1);
        // SAFETY: the child does nothing but wait for its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: it waits.
                unsafe { libc::pause() };
            }
        }
        for seed in 2..20 {
            works(&ours, &mut theirs, seed);
        }
        // SAFETY: ends our own child, and waits for that.
        let ended = unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0)
        };
        assert_eq!(ended, child);
        works(&ours, &mut theirs, 20);
    });
}

/// Not a test: a process that opens a device, forks and ends, and says who lives on.
#[test]
fn parent() {
    let Some(_) = role::order() else { return };
    let _device = Device::open(LINK).expect("the link is there");
    role::end_and_leave_a_child();
}

#[test]
fn a_child_of_the_dead_does_not_keep_the_port() {
    let name = "process::a_child_of_the_dead_does_not_keep_the_port";
    on_loopback(name, |mut ferroced| {
        let mut parent = role::start("process::parent", "", None);
        let child: i32 = parent.hear().parse().expect("a process");
        parent.wait();
        ferroced.kill();
        let _ferroced = Ferroced::start();
        let device = Device::open(LINK);
        // SAFETY: ends a process that was started here.
        let ended = unsafe { libc::kill(child, libc::SIGKILL) };
        assert_eq!(ended, 0, "the child lives until now");
        device.expect("nothing is in the way");
    });
}

/// Descriptors of this process above standard error.
fn descriptors() -> Vec<i32> {
    let all = fs::read_dir("/proc/self/fd").expect("procfs");
    let names = all.map(|entry| entry.expect("an entry").file_name());
    names
        .filter_map(|name| name.to_str()?.parse().ok())
        .filter(|&fd| fd > 2)
        .collect()
}

#[test]
fn descriptors_are_closed_on_exec() {
    on_loopback("process::descriptors_are_closed_on_exec", |_ferroced| {
        let inherited = descriptors();
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        works(&ours, &mut theirs, 1);
        let mut seen = 0;
        for fd in descriptors() {
            if inherited.contains(&fd) {
                continue;
            }
            // SAFETY: used at once, and only if it is still open.
            let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
            // The directory that we listed is closed by now.
            let Ok(flags) = fcntl_getfd(borrowed) else {
                continue;
            };
            let what = fs::read_link(format!("/proc/self/fd/{fd}"));
            assert!(flags.contains(FdFlags::CLOEXEC), "{fd}: {what:?}");
            seen += 1;
        }
        assert!(seen > 5, "only {seen} descriptors");
    });
}

/// Threads of this process that are the device's, and how often each has slept.
fn sleeps() -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").expect("procfs") {
        let status = task.expect("a thread").path().join("status");
        let status = fs::read_to_string(status).expect("it lives");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.expect("known to procfs").trim().to_owned()
        };
        let name = field("Name:");
        if name.starts_with("ferroce-") {
            let count = field("voluntary_ctxt_switches:");
            found.push((name, count.parse().expect("a number")));
        }
    }
    found
}

#[test]
fn idle_means_idle() {
    on_loopback("process::idle_means_idle", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        works(&ours, &mut theirs, 1);
        assert_eq!(sleeps().len(), 2, "progress and control");
        // What was begun comes to an end first; then nothing happens for a while.
        let quiet = Duration::from_millis(300);
        deadline::until("the threads sleep on", || {
            let before = sleeps();
            assert!(!deadline::readable_within(ours.channel.fd(), quiet));
            before == sleeps()
        });
        works(&ours, &mut theirs, 2);
    });
}

extern "C" fn on_fault(_: libc::c_int) {
    // SAFETY: ends the process, as the handler of somebody who is not amused.
    unsafe { libc::_exit(99) };
}

/// A program that wants faults for itself gets them, and ours fail all the same.
#[test]
fn the_program_takes_the_fault_handler() {
    on_loopback(
        "process::the_program_takes_the_fault_handler",
        |_ferroced| {
            let (ours, mut theirs) = pair(QpType::Rc, V4);
            works(&ours, &mut theirs, 1);
            assert_eq!(
                ProcessMemory::current().is_slow(),
                cfg!(not(target_arch = "x86_64"))
            );
            for signal in [libc::SIGSEGV, libc::SIGBUS] {
                let handler = on_fault as extern "C" fn(libc::c_int);
                // SAFETY: a handler of the right signature.
                unsafe { libc::signal(signal, handler as libc::sighandler_t) };
            }
            assert!(ProcessMemory::current().is_slow());
            works(&ours, &mut theirs, 2);
            ours.read(1, 0, 100_000);
            ours.succeed(1);
            ours.unmap();
            ours.read(2, 0, 100_000);
            assert_eq!(ours.status(), WcStatus::LocalProtection);
            assert_eq!(ours.state(), QpState::Err);
            theirs.expect("state", "Rts");
        },
    );
}

/// A program with a thread for signals blocks them in all others, and polls there.
#[test]
fn a_poller_with_all_signals_blocked_survives_memory_that_is_gone() {
    let name = "process::a_poller_with_all_signals_blocked_survives_memory_that_is_gone";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        works(&ours, &mut theirs, 1);
        // SAFETY: sigset_t is plain data; the calls fill it and set this thread's mask.
        unsafe {
            let mut all: libc::sigset_t = core::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, core::ptr::null_mut());
        }
        // The progress thread leaves the sockets to a thread that polls over and over.
        for id in 0..100 {
            ours.read(id, 0, 100_000);
            ours.succeed(1);
        }
        ours.unmap();
        ours.read(100, 0, 100_000);
        assert_eq!(ours.status(), WcStatus::LocalProtection);
        theirs.expect("state", "Rts");
    });
}
