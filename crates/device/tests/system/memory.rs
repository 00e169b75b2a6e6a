//! Memory that is unmapped while it is used: operations fail, and processes survive.

use std::time::Duration;

use ferroce_device::transport::{QpState, QpType, SendOp, WcStatus};

use ferroce_testnet::deadline;

use crate::support::{Endpoint, Puppet, V4, on_loopback, pair, pattern};

const MESSAGE: u32 = 256 << 10;

/// Keeps several messages in flight until one fails, while the peer follows an order about
/// its memory. Returns the status of the first failure.
fn first_failure(
    ours: &Endpoint,
    theirs: &mut Puppet,
    post: impl Fn(&Endpoint, u64),
    order: &str,
) -> WcStatus {
    for id in 0..8 {
        post(ours, id);
    }
    ours.succeed(4);
    theirs.actor.say(order);
    loop {
        let status = ours.status();
        if status != WcStatus::Success {
            assert_eq!(theirs.actor.hear(), "done");
            return status;
        }
        post(ours, 9);
    }
}

fn write(end: &Endpoint, id: u64) {
    end.write(id, (id % 8) * u64::from(MESSAGE), MESSAGE);
}

fn read(end: &Endpoint, id: u64) {
    end.read(id, (id % 8) * u64::from(MESSAGE), MESSAGE);
}

fn fails_at_the_other_end(name: &str, post: fn(&Endpoint, u64), order: &str) {
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        let status = first_failure(&ours, &mut theirs, post, order);
        assert_eq!(status, WcStatus::RemoteOperation);
        assert_eq!(ours.state(), QpState::Err);
        theirs.expect("state", "Err");
    });
}

#[test]
fn write_to_unmapped_memory_fails() {
    let name = "memory::write_to_unmapped_memory_fails";
    fails_at_the_other_end(name, write, "unmap");
}

#[test]
fn read_from_unmapped_memory_fails() {
    let name = "memory::read_from_unmapped_memory_fails";
    fails_at_the_other_end(name, read, "unmap");
}

#[test]
fn write_to_read_only_memory_fails() {
    let name = "memory::write_to_read_only_memory_fails";
    fails_at_the_other_end(name, write, "protect");
}

#[test]
fn read_from_read_only_memory_succeeds() {
    on_loopback("memory::read_from_read_only_memory_succeeds", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        theirs.expect("put 5 0 10000", "done");
        theirs.expect("protect", "done");
        ours.read(1, 0, 10_000);
        ours.succeed(1);
        assert!(ours.get(0, 10_000) == pattern(5, 10_000));
    });
}

#[test]
fn send_to_an_unmapped_receive_fails() {
    on_loopback("memory::send_to_an_unmapped_receive_fails", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        theirs.expect("receive 1 0 8192", "done");
        theirs.expect("unmap", "done");
        ours.post(1, SendOp::Send { imm: None }, 0, 8192);
        assert_eq!(ours.status(), WcStatus::RemoteOperation);
        let said = theirs.actor.ask("complete 1");
        assert!(said.starts_with("LocalProtection"), "{said}");
        theirs.expect("state", "Err");
    });
}

/// The buffer of a send or a receive is unmapped when it is posted.
#[test]
fn local_unmapped_memory_fails_the_work_request() {
    on_loopback(
        "memory::local_unmapped_memory_fails_the_work_request",
        |_ferroced| {
            let (ours, mut theirs) = pair(QpType::Rc, V4);
            ours.unmap();
            ours.write(1, 0, 8192);
            assert_eq!(ours.status(), WcStatus::LocalProtection);
            assert_eq!(ours.state(), QpState::Err);
            theirs.expect("state", "Rts");

            let (ours, mut theirs) = pair(QpType::Rc, V4);
            ours.make_read_only();
            ours.read(1, 0, 8192);
            assert_eq!(ours.status(), WcStatus::LocalProtection);
            assert_eq!(ours.state(), QpState::Err);
            theirs.expect("state", "Rts");
        },
    );
}

/// A program that has just replaced the fault handler survives as well.
#[test]
fn local_unmapped_memory_without_fault_handler_fails_the_work_request() {
    let name = "memory::local_unmapped_memory_without_fault_handler_fails_the_work_request";
    on_loopback(name, |_ferroced| {
        let (ours, _theirs) = pair(QpType::Rc, V4);
        ours.write(1, 0, 8192);
        ours.succeed(1);
        // SAFETY: sets the default action; no test needs the handler afterwards.
        let before = unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        assert_ne!(before, libc::SIG_ERR);
        let moment = Duration::from_millis(2);
        assert!(!deadline::readable_within(ours.channel.fd(), moment));
        ours.unmap();
        ours.write(2, 0, 8192);
        assert_eq!(ours.status(), WcStatus::LocalProtection);
    });
}

/// After deregistration has returned, no packet writes to that memory.
#[test]
fn no_write_reaches_memory_after_deregistration() {
    on_loopback(
        "memory::no_write_reaches_memory_after_deregistration",
        |_ferroced| {
            let (ours, mut theirs) = pair(QpType::Rc, V4);
            let all = 8 * MESSAGE;
            ours.put(0, &pattern(1, all));
            let status = first_failure(&ours, &mut theirs, write, "deregister");
            assert_eq!(status, WcStatus::RemoteAccess);
            theirs.expect(&format!("put 2 0 {all}"), "done");
            theirs.expect("state", "Err");
            theirs.expect(&format!("check 2 0 {all}"), "right");
        },
    );
}

#[test]
fn local_deregistration_fails_pending_reads() {
    on_loopback(
        "memory::local_deregistration_fails_pending_reads",
        |_ferroced| {
            let (ours, mut theirs) = pair(QpType::Rc, V4);
            for id in 0..8 {
                read(&ours, id);
            }
            ours.device.deregister(&ours.mr).expect("registered");
            let all = 8 * MESSAGE;
            ours.put(0, &pattern(3, all));
            // Some READs may have completed before the deregistration.
            for wc in ours.completions(8) {
                let status = wc.status;
                assert!(
                    matches!(
                        status,
                        WcStatus::Success | WcStatus::LocalProtection | WcStatus::WrFlush
                    ),
                    "{status:?}"
                );
            }
            assert!(ours.get(0, all) == pattern(3, all), "not written to");
            theirs.expect("state", "Rts");
        },
    );
}
