//! A ferroced for the network namespace of the test.

use ferroce_control::{LinkConfig, Request, Watch, find_daemon, runtime_dirs};
use ferroce_testnet::{deadline, role};

/// A ferroced in its own process, killed when it is dropped.
pub(crate) struct Ferroced(role::Actor);

impl Ferroced {
    pub(crate) fn start() -> Ferroced {
        Ferroced::start_for("")
    }

    /// Starts one that also serves the members of a group. Without a name it serves no group.
    pub(crate) fn start_for(group: &str) -> Ferroced {
        let dir = runtime_dirs().expect("known").remove(0);
        dir.create().expect("a runtime directory");
        let watch = Watch::new(dir.path()).expect("inotify");
        // The path of the test `role` below, in any test program that includes this module.
        let (_program, here) = module_path!().split_once("::").expect("a module");
        let ferroced = Ferroced(role::start(&format!("{here}::role"), group, None));
        while find_daemon().expect("no other trouble").is_none() {
            deadline::readable(&watch, "ferroced's control socket");
            watch.clear();
        }
        ferroced
    }

    /// Stops the process: it answers no more.
    #[allow(dead_code, reason = "not all test programs do")]
    pub(crate) fn stop(&self) {
        self.0.signal(rustix::process::Signal::STOP);
        let status = format!("/proc/{}/status", self.0.pid());
        deadline::until("ferroced stops", || {
            std::fs::read_to_string(&status).is_ok_and(|now| now.contains("State:\tT"))
        });
    }

    /// Continues the process after [`Ferroced::stop`].
    #[allow(dead_code, reason = "not all test programs do")]
    pub(crate) fn go_on(&self) {
        self.0.signal(rustix::process::Signal::CONT);
    }

    /// `kill -9`
    pub(crate) fn kill(&mut self) {
        self.0.kill();
    }
}

/// Adds a link of type rxe on a netdev.
pub(crate) fn add_link(name: &str, netdev: &str) {
    add_link_of("rxe", name, netdev);
}

/// Adds a link of a type on a netdev.
pub(crate) fn add_link_of(kind: &str, name: &str, netdev: &str) {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let config = LinkConfig {
        name: name.into(),
        kind: kind.into(),
        netdev: netdev.into(),
        mtu: None,
        crc: kind == "rxe",
        lids: false,
        patience: 0,
        speed: None,
        local: true,
        strict: String::new(),
        profile: String::new(),
    };
    let added = connection.perform(&Request::LinkAdd(config));
    added.expect("a link");
}

/// Sets the option `lids` of a link, which maps LIDs to IPv4 addresses.
#[allow(dead_code)] // not every test program has links with LIDs
pub(crate) fn set_lids(name: &str, on: bool) {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let changed = connection.perform(&Request::LinkSet {
        name: name.into(),
        rename: None,
        mtu: None,
        crc: None,
        lids: Some(on),
        patience: None,
        speed: None,
        local: None,
        strict: None,
        profile: None,
    });
    changed.expect("a link that can be changed");
}

/// Makes the kernel kill this process when its parent dies.
pub(crate) fn end_with_parent() {
    let signal = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(signal).expect("possible");
}

/// Not a test: the process of ferroced.
#[test]
fn role() {
    let Some(group) = role::order() else { return };
    end_with_parent();
    if std::env::var_os("FERROCE_LOG").is_none() {
        // SAFETY: no other thread reads the environment.
        unsafe { std::env::set_var("FERROCE_LOG", "error") };
    }
    let options = ferroce_daemon::Options {
        foreground: true,
        group: Some(group).filter(|group| !group.is_empty()),
        ..ferroce_daemon::Options::default()
    };
    ferroce_daemon::run(&options).expect("it runs until it is killed");
}
