//! Devices that are opened and closed many times, and opens that fail.

use std::fs;

use ferroce_device::transport::{Access, QpType};
use ferroce_device::{Buffer, Device};
use ferroce_endpoint::{Endpoint, Options};
use ferroce_testnet::{deadline, isolated_as_root};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, set_capabilities};

use crate::client::slots;
use crate::support::{Ferroced, LINK, V4, ferroced, on_loopback};

/// Returns the numbers of mappings, descriptors and threads of this process.
fn belongings() -> [usize; 3] {
    let maps = fs::read_to_string("/proc/self/maps").expect("procfs");
    let count = |dir: &str| fs::read_dir(dir).expect("procfs").count();
    [
        maps.lines().count(),
        count("/proc/self/fd"),
        count("/proc/self/task"),
    ]
}

/// `FERROCE_TEST_CYCLES` sets the number of cycles, for a longer run by hand.
#[test]
fn closed_device_leaves_no_mapping_descriptor_or_thread() {
    let name = "opening::closed_device_leaves_no_mapping_descriptor_or_thread";
    on_loopback(name, |_ferroced| {
        let cycles = std::env::var("FERROCE_TEST_CYCLES");
        let cycles: usize = cycles.map_or(100, |count| count.parse().expect("a number"));
        let open_and_close = || {
            let device = Device::open(LINK).expect("the link is there");
            device.attach().expect("slots are free");
        };
        // The C library keeps stacks and arenas for the next threads.
        (0..10).for_each(|_| open_and_close());
        let before = belongings();
        (0..cycles).for_each(|_| open_and_close());
        let some_more = before.map(|count| count + 20);
        // The kernel lists an ended thread for a moment.
        deadline::until("nothing is left", || {
            let now = belongings();
            now.iter().zip(&some_more).all(|(now, most)| now < most)
        });
    });
}

/// Returns the number of threads of this process that belong to a device.
fn device_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs");
    let names = tasks.map(|task| task.expect("a thread").path().join("comm"));
    let names = names.filter_map(|comm| fs::read_to_string(comm).ok());
    names.filter(|name| name.starts_with("ferroce-")).count()
}

/// Becomes a user with a limit of threads, but keeps root's right to reach ferroced.
fn become_countable() {
    // No other process has this user.
    let uid = 1_000_000 + std::process::id();
    // SAFETY: the C library changes the user of all threads.
    assert_eq!(unsafe { libc::setresuid(uid, 0, 0) }, 0);
    let limited = CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN;
    let mut capabilities = rustix::thread::capabilities(None).expect("ours");
    capabilities.effective -= limited;
    set_capabilities(None, capabilities).expect("giving up is allowed");
}

/// The progress thread of a queue pair that failed would read packets of the slot's next
/// owner.
#[test]
fn failed_queue_pair_leaves_no_thread() {
    let name = "opening::failed_queue_pair_leaves_no_thread";
    isolated_as_root(name, || {
        let _ferroced = Ferroced::start();
        ferroced::add_link(LINK, "lo");
        become_countable();
        let threads = belongings()[2] as u64;
        let mut failures = 0;
        for most in threads.. {
            let limit = Rlimit {
                current: Some(most),
                ..getrlimit(Resource::Nproc)
            };
            setrlimit(Resource::Nproc, limit).expect("it is below the maximum");
            let device = Device::open(LINK).expect("a device needs no thread");
            assert_eq!(device_threads(), 0);
            let pd = device.alloc_pd();
            match Endpoint::on(&device, &pd, Options::new(QpType::Rc, V4)) {
                Ok(_endpoint) => {
                    // A thread sets its name after it has started.
                    deadline::until("progress and control", || device_threads() == 2);
                    break;
                }
                Err(error) => {
                    let words = format!("{error:#}");
                    assert!(words.contains("thread: Resource temporarily"), "{words}");
                    failures += 1;
                }
            }
            drop((pd, device));
            deadline::until("the failed device's threads end", || device_threads() == 0);
        }
        assert_eq!(failures, 2, "the first thread, and the second");
    });
}

/// The control thread starts with the first slot, and the progress thread with the first queue
/// pair.
#[test]
fn no_thread_runs_before_the_first_queue_pair() {
    let name = "opening::no_thread_runs_before_the_first_queue_pair";
    on_loopback(name, |_ferroced| {
        let threads = || belongings()[2];
        let before = threads();
        let device = Device::open(LINK).expect("the link is there");
        let pd = device.alloc_pd();
        let buffer = Buffer::new(&device, &pd, 4096, Access::LOCAL_WRITE).expect("registered");
        let cq = device.create_cq(16, None).expect("a completion queue");
        assert!(!device.link().gids.is_empty());
        assert_eq!((threads(), slots().len()), (before, 0));
        let endpoint = Endpoint::on(&device, &pd, Options::new(QpType::Rc, V4));
        let endpoint = endpoint.expect("a queue pair");
        assert_eq!((threads(), slots().len()), (before + 2, 1));
        drop((buffer, cq, endpoint, pd, device));
        // The kernel lists an ended thread for a moment.
        deadline::until("no thread is left", || threads() == before);
        deadline::until("the slot is free", || slots().is_empty());
    });
}
