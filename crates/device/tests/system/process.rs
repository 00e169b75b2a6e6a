//! Programs that fork, exec, handle signals, or are idle.

use std::fs;
use std::process::Command;
use std::time::Duration;

use ferroce_device::transport::{QpCap, QpInit, QpState, QpType, WcStatus};
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
fn parent_works_while_children_run_and_end() {
    on_loopback(
        "process::parent_works_while_children_run_and_end",
        |_ferroced| {
            let (ours, mut theirs) = pair(QpType::Rc, V4);
            works(&ours, &mut theirs, 1);
            for seed in 2..5 {
                // A child that executes another program.
                let status = Command::new("/bin/true").status().expect("it exists");
                assert!(status.success());
                works(&ours, &mut theirs, seed);
                // A child that ends with all its exit handlers.
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
        },
    );
}

/// A child has the queues of its parent, but not the memory that programs of the host share.
#[test]
fn child_that_polls_finds_nothing() {
    on_loopback("process::child_that_polls_finds_nothing", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        works(&ours, &mut theirs, 1);
        // SAFETY: the child only polls and ends. A poll waits for no lock, and finds nothing.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let found: usize = (0..100).map(|_| ours.cq.poll(1, |_| ())).sum();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(7 + i32::from(found > 0)) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(
            (waited, status),
            (child, 7 << 8),
            "an exit status, no signal"
        );
        works(&ours, &mut theirs, 2);
    });
}

#[test]
fn child_that_closes_a_device_leaves_the_parents_open() {
    let name = "process::child_that_closes_a_device_leaves_the_parents_open";
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
        deadline::readable(device.event_fd(), "the parent hears of its link");
    });
}

/// The child neither executes a program nor ends, so it keeps copies of all descriptors.
#[test]
fn parent_works_beside_a_living_child() {
    on_loopback("process::parent_works_beside_a_living_child", |_ferroced| {
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

/// Not a test: a process that opens a device, forks and ends. It prints the child's pid.
#[test]
fn parent() {
    let Some(_) = role::order() else { return };
    let _device = Device::open(LINK).expect("the link is there");
    role::end_and_leave_a_child();
}

#[test]
fn child_of_a_dead_program_does_not_keep_the_port() {
    let name = "process::child_of_a_dead_program_does_not_keep_the_port";
    on_loopback(name, |mut ferroced| {
        let mut parent = role::start("process::parent", "", None);
        let child: i32 = parent.hear().parse().expect("a process");
        parent.wait();
        ferroced.kill();
        let _ferroced = Ferroced::start();
        let device = Device::open(LINK);
        // SAFETY: ends a process that was started here.
        let ended = unsafe { libc::kill(child, libc::SIGKILL) };
        assert_eq!(ended, 0, "the child is still alive");
        device.expect("the port is free");
    });
}

/// Returns the descriptors of this process above standard error.
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
            // The listed directory is closed by now.
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

/// Returns the device's threads in this process, each with the number of its sleeps.
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
fn threads_of_an_idle_device_sleep() {
    on_loopback("process::threads_of_an_idle_device_sleep", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        works(&ours, &mut theirs, 1);
        assert_eq!(sleeps().len(), 2, "progress and control");
        // Work in progress ends first; then no thread wakes up for a while.
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
    // SAFETY: the call ends the process.
    unsafe { libc::_exit(99) };
}

/// A program with its own fault handler gets its faults, and bad accesses of the device
/// fail.
#[test]
fn program_with_its_own_fault_handler_gets_its_faults() {
    on_loopback(
        "process::program_with_its_own_fault_handler_gets_its_faults",
        |_ferroced| {
            let (ours, mut theirs) = pair(QpType::Rc, V4);
            works(&ours, &mut theirs, 1);
            // SAFETY: the value is asked for its kind only, and accesses no memory.
            let is_slow = || unsafe { ProcessMemory::current() }.is_slow();
            assert_eq!(is_slow(), cfg!(not(target_arch = "x86_64")));
            for signal in [libc::SIGSEGV, libc::SIGBUS] {
                let handler = on_fault as extern "C" fn(libc::c_int);
                // SAFETY: a handler of the right signature.
                unsafe { libc::signal(signal, handler as libc::sighandler_t) };
            }
            assert!(is_slow());
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

/// A program with a signal thread blocks signals in its other threads, and polls there.
#[test]
fn poller_with_blocked_signals_survives_unmapped_memory() {
    let name = "process::poller_with_blocked_signals_survives_unmapped_memory";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        works(&ours, &mut theirs, 1);
        // SAFETY: sigset_t is plain data; the calls fill it and set this thread's mask.
        unsafe {
            let mut all: libc::sigset_t = core::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, core::ptr::null_mut());
        }
        // While this thread polls, the progress thread leaves the sockets alone.
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

/// The child has a device of its own after it has opened one.
#[test]
fn child_cannot_create_queue_pairs_on_a_device_of_its_parent() {
    let name = "process::child_cannot_create_queue_pairs_on_a_device_of_its_parent";
    on_loopback(name, |_ferroced| {
        let device = Device::open(LINK).expect("the link is there");
        for attached in [false, true] {
            if attached {
                device.attach().expect("slots are free");
            }
            // SAFETY: the child opens a device and ends. The allocator of the C library can be
            // used after a fork.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child if it hangs, and at once if it does not.
                unsafe {
                    libc::alarm(30);
                    let own = Device::open(LINK).is_ok_and(|own| own.attach().is_ok());
                    let cq = device.create_cq(1, None).expect("a completion queue");
                    let refused = device.create_qp(&init(&device, &cq), &[&cq]).is_err();
                    libc::_exit(i32::from(own) + 2 * i32::from(refused));
                }
            }
            let mut status = 0;
            // SAFETY: waits for our own child.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!((waited, status), (child, 3 << 8), "attached: {attached}");
        }
    });
}

/// Returns the attributes of a queue pair.
fn init(device: &Device, cq: &ferroce_device::Cq) -> QpInit {
    QpInit {
        qp_type: QpType::Rc,
        pd: Some(device.alloc_pd()),
        send_cq: Some(cq.queue().clone()),
        recv_cq: Some(cq.queue().clone()),
        srq: None,
        xrcd: None,
        cap: QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        sq_sig_all: true,
    }
}
