//! Memory that goes away while it is used: operations fail, processes live.

use std::time::Duration;

use ferroce_device::transport::{QpState, QpType, SendOp, WcStatus};

use ferroce_testnet::deadline;

use crate::support::{Endpoint, Puppet, V4, on_loopback, pair, pattern};

const MESSAGE: u32 = 256 << 10;

/// Keeps several messages under way until one fails, and has the other do something to
/// its memory meanwhile; says how the first failed.
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
fn the_other_unmaps_what_we_write() {
    let name = "memory::the_other_unmaps_what_we_write";
    fails_at_the_other_end(name, write, "unmap");
}

#[test]
fn the_other_unmaps_what_we_read() {
    let name = "memory::the_other_unmaps_what_we_read";
    fails_at_the_other_end(name, read, "unmap");
}

#[test]
fn the_other_protects_what_we_write() {
    let name = "memory::the_other_protects_what_we_write";
    fails_at_the_other_end(name, write, "protect");
}

#[test]
fn what_is_protected_can_be_read() {
    on_loopback("memory::what_is_protected_can_be_read", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        theirs.expect("put 5 0 10000", "done");
        theirs.expect("protect", "done");
        ours.read(1, 0, 10_000);
        ours.succeed(1);
        assert!(ours.get(0, 10_000) == pattern(5, 10_000));
    });
}

#[test]
fn the_other_unmaps_its_receive_buffer() {
    on_loopback("memory::the_other_unmaps_its_receive_buffer", |_ferroced| {
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

/// What we send from, or receive into, is gone when we post.
#[test]
fn our_own_memory_is_gone() {
    on_loopback("memory::our_own_memory_is_gone", |_ferroced| {
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
    });
}

/// A program that replaced the fault handler a moment ago is as safe as any other.
#[test]
fn our_own_memory_is_gone_and_so_is_the_fault_handler() {
    let name = "memory::our_own_memory_is_gone_and_so_is_the_fault_handler";
    on_loopback(name, |_ferroced| {
        let (ours, _theirs) = pair(QpType::Rc, V4);
        ours.write(1, 0, 8192);
        ours.succeed(1);
        // SAFETY: the default action; no handler of ours can be needed any more.
        let before = unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        assert_ne!(before, libc::SIG_ERR);
        let moment = Duration::from_millis(2);
        assert!(!deadline::readable_within(ours.channel.fd(), moment));
        ours.unmap();
        ours.write(2, 0, 8192);
        assert_eq!(ours.status(), WcStatus::LocalProtection);
    });
}

/// Once deregistration has returned, nobody writes to that memory any more.
#[test]
fn the_other_deregisters() {
    on_loopback("memory::the_other_deregisters", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        let all = 8 * MESSAGE;
        ours.put(0, &pattern(1, all));
        let status = first_failure(&ours, &mut theirs, write, "deregister");
        assert_eq!(status, WcStatus::RemoteAccess);
        theirs.expect(&format!("put 2 0 {all}"), "done");
        theirs.expect("state", "Err");
        theirs.expect(&format!("check 2 0 {all}"), "right");
    });
}

#[test]
fn we_deregister() {
    on_loopback("memory::we_deregister", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        for id in 0..8 {
            read(&ours, id);
        }
        ours.device.deregister(&ours.mr).expect("registered");
        let all = 8 * MESSAGE;
        ours.put(0, &pattern(3, all));
        // Whether some were faster than we, or none.
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
        assert!(ours.get(0, all) == pattern(3, all), "left alone");
        theirs.expect("state", "Rts");
    });
}
