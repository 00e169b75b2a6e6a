//! The control client: all devices of a process share one connection to ferroced.

use std::fs;
use std::os::fd::BorrowedFd;

use ferroce_control::find_daemon;
use ferroce_device::transport::QpType;
use ferroce_device::{AsyncEvent, Device, list_links};
use ferroce_testnet::{deadline, isolated, netdev};
use rustix::net::SocketAddrUnix;

use crate::support::ferroced::add_link;
use crate::support::{Ferroced, LINK, Puppet, V4, on_loopback};

const OTHER: &str = "rxe1";

/// Returns the number of control threads of this process, and of its connections to ferroced.
fn threads_and_connections() -> (usize, usize) {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let threads = names.filter(|name| name.trim_end() == "ferroce-control");
    let fds = fs::read_dir("/proc/self/fd").expect("procfs");
    let fds = fds.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let connections = fds.filter(|&fd| {
        // SAFETY: used for one system call, which fails if the descriptor is closed.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let peer = rustix::net::getpeername(fd).ok().flatten();
        let peer = peer.and_then(|peer| SocketAddrUnix::try_from(peer).ok());
        let path = peer.as_ref().and_then(SocketAddrUnix::path_bytes);
        // The kernel keeps the name that the socket had when it was created.
        path.is_some_and(|path| String::from_utf8_lossy(path).contains("control.sock"))
    });
    (threads.count(), connections.count())
}

/// Returns the slots of this process, as ferroced knows them.
pub(crate) fn slots() -> Vec<u8> {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let counters = connection.counters(None, true).expect("counted");
    let ours = counters.into_iter().filter_map(|counted| counted.process);
    let ours = ours.filter(|process| process.pid == std::process::id());
    let mut slots: Vec<u8> = ours.flat_map(|process| process.slots).collect();
    slots.sort_unstable();
    slots
}

/// Adds a second link, on a netdev of its own.
fn add_other() {
    netdev::add_veth("one", "two");
    netdev::add_address("one", "192.0.2.1/24");
    netdev::set_up("one");
    netdev::set_up("two");
    add_link(OTHER, "one");
}

/// Opens a device and takes slots.
fn open(link: &str) -> std::sync::Arc<Device> {
    let device = Device::open(link).expect("the link is there");
    device.attach().expect("slots are free");
    device
}

/// Waits for the next event of a device, of a kind that the test expects.
fn expect(device: &Device, expected: AsyncEvent) {
    loop {
        deadline::readable(device.event_fd(), "an event");
        let event = device.take_event().expect("an event");
        // Addresses come and go with the state of the port.
        if !matches!(event, AsyncEvent::GidChange) {
            assert_eq!(format!("{event:?}"), format!("{expected:?}"));
            return;
        }
    }
}

#[test]
fn devices_share_one_connection_and_one_thread() {
    let name = "client::devices_share_one_connection_and_one_thread";
    on_loopback(name, |_ferroced| {
        add_other();
        assert_eq!(threads_and_connections(), (0, 0));
        assert_eq!(list_links().expect("listed").len(), 2);
        assert_eq!(threads_and_connections(), (0, 0), "the list is over");
        let devices = [open(LINK), open(OTHER), open(LINK)];
        assert_eq!(list_links().expect("listed").len(), 2);
        // A thread sets its name after it has started.
        deadline::until("the thread has a name", || {
            threads_and_connections() == (1, 1)
        });
        assert_eq!(slots(), [1, 2]);
        let [one, two, three] = devices;
        drop(two);
        deadline::until("slot 2 is free", || slots() == [1]);
        drop(one);
        assert_eq!(slots(), [1], "another device uses slot 1");
        drop(three);
        // The kernel lists an ended thread for a moment.
        deadline::until("no thread is left", || threads_and_connections() == (0, 0));
        deadline::until("all slots are free", || slots().is_empty());
    });
}

#[test]
#[allow(clippy::disallowed_methods, reason = "threads are the test")]
fn concurrent_opens_share_one_connection() {
    let name = "client::concurrent_opens_share_one_connection";
    on_loopback(name, |_ferroced| {
        for _ in 0..20 {
            let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(|| open(LINK))).collect();
            let devices: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            assert_eq!(threads_and_connections().1, 1);
            assert_eq!(slots().len(), 1);
            drop(devices);
            assert_eq!(threads_and_connections().1, 0);
            deadline::until("the slot is free", || slots().is_empty());
        }
    });
}

#[test]
fn event_of_a_link_reaches_its_devices_only() {
    isolated("client::event_of_a_link_reaches_its_devices_only", || {
        let _ferroced = Ferroced::start();
        add_link(LINK, "lo");
        add_other();
        let (first, second, other) = (open(LINK), open(LINK), open(OTHER));
        netdev::set_down("lo");
        expect(&first, AsyncEvent::PortError);
        expect(&second, AsyncEvent::PortError);
        netdev::set_down("two");
        expect(&other, AsyncEvent::PortError);
    });
}

#[test]
fn restarted_ferroced_gets_each_open_device_back() {
    let name = "client::restarted_ferroced_gets_each_open_device_back";
    on_loopback(name, |mut ferroced| {
        add_other();
        let devices = [open(LINK), open(OTHER), open(LINK)];
        let [one, two, three] = devices;
        drop(one);
        assert_eq!(slots(), [1, 2]);
        ferroced.kill();
        let ferroced = Ferroced::start();
        netdev::set_down("lo");
        expect(&three, AsyncEvent::PortError);
        netdev::set_down("two");
        expect(&two, AsyncEvent::PortError);
        // The new connection serves new devices, and takes slots back.
        let four = open(LINK);
        assert_eq!(slots(), [1, 2], "each attachment is resumed once");
        drop((two, four));
        deadline::until("slot 2 is free", || slots() == [1]);
        deadline::until("one thread", || threads_and_connections() == (1, 1));
        drop(ferroced);
    });
}

/// The next ferroced knows the slots of all devices from its state file, and this process
/// lives.
#[test]
fn device_closed_without_a_ferroced_leaves_its_slots() {
    let name = "client::device_closed_without_a_ferroced_leaves_its_slots";
    on_loopback(name, |mut ferroced| {
        add_other();
        // It keeps the group of sockets.
        let _other = Puppet::start(QpType::Rc, V4);
        let (one, two) = (open(LINK), open(OTHER));
        assert_eq!(slots(), [2, 3]);
        ferroced.kill();
        drop(two);
        let mut ferroced = Ferroced::start();
        deadline::until("slot 3 is free", || slots() == [2]);
        ferroced.kill();
        // No device is left to recover.
        drop(one);
        let _ferroced = Ferroced::start();
        assert_eq!(slots(), [2]);
        list_links().expect("listed");
        deadline::until("the next use releases them", || slots().is_empty());
    });
}

/// A ferroced that was restarted is found by the next open, even if no notice of it has been
/// handled yet.
#[test]
fn device_is_opened_right_after_a_restart() {
    let name = "client::device_is_opened_right_after_a_restart";
    on_loopback(name, |mut ferroced| {
        let kept = Device::open(LINK).expect("the link is there");
        for _ in 0..5 {
            ferroced.kill();
            assert!(list_links().expect("no ferroced is no error").is_empty());
            assert!(matches!(
                Device::open(LINK),
                Err(ferroce_device::Error::Control(
                    ferroce_control::Error::NoDaemon
                ))
            ));
            ferroced = Ferroced::start();
            drop(Device::open(LINK).expect("the link is there"));
        }
        kept.attach().expect("slots are free");
        for _ in 0..5 {
            ferroced.kill();
            // A device with slots needs no ferroced, and shares them.
            drop(open(LINK));
            ferroced = Ferroced::start();
            drop(open(LINK));
        }
    });
}

/// A thread of the parent opens devices at the time of each fork, and does not exist in the
/// child.
#[test]
#[allow(clippy::disallowed_methods, reason = "threads are the test")]
fn child_opens_a_device_whatever_the_parent_does() {
    let name = "client::child_opens_a_device_whatever_the_parent_does";
    on_loopback(name, |_ferroced| {
        let ends = std::sync::atomic::AtomicBool::new(false);
        let ends = &ends;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(move || {
                    while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                        drop(open(LINK));
                        list_links().expect("listed");
                    }
                });
            }
            for round in 0..50 {
                // SAFETY: the child opens a device and ends. The allocator of the C library
                // can be used after a fork.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: ends the child if it hangs, and at once if it does not.
                    unsafe {
                        libc::alarm(30);
                        let listed = list_links().is_ok_and(|links| links.len() == 1);
                        let opened = Device::open(LINK);
                        let opened = opened.is_ok_and(|device| device.attach().is_ok());
                        libc::_exit(i32::from(listed) + 2 * i32::from(opened));
                    }
                }
                let mut status = 0;
                // SAFETY: waits for our own child.
                let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!((waited, status), (child, 3 << 8), "round {round}");
            }
            ends.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    });
}
