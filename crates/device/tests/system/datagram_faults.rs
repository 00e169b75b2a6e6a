//! Faults on demand act on datagrams as well through shared memory as over UDP.

use ferroce_control::{Request, find_daemon};
use ferroce_device::faults::CountsPage;
use ferroce_device::transport::{QpType, SendOp};
use ferroce_testnet::deadline;

use crate::local::{counter, is_chosen, set_local};
use crate::support::{Endpoint, LINK, Puppet, V4, V6, on_loopback, pair};

const SEND: SendOp = SendOp::Send { imm: None };
/// Length of the GRH area in front of a received datagram.
const GRH: u32 = 40;
/// Most datagrams that a test receives.
const RECEIVES: u64 = 16;

/// Puts faults in force on the link, and waits until a program has them.
fn set_faults(end: &Endpoint, faults: &str) {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let name = LINK.into();
    let faults = faults.to_owned();
    let set = Request::LinkFaults { name, faults };
    connection.perform(&set).expect("faults of a link");
    let Request::LinkFaults { faults, .. } = set else {
        unreachable!("just made");
    };
    deadline::until("the faults", || end.device.link().faults == faults);
}

/// Sends datagrams of these lengths, each by a call of its own.
fn send(ours: &Endpoint, lengths: &[u32]) {
    for &length in lengths {
        ours.post(1, SEND, 0, length);
        ours.succeed(1);
    }
}

/// Checks that the next datagrams that the other program receives have these lengths.
fn receives(theirs: &mut Puppet, lengths: &[u32]) {
    let all = lengths
        .iter()
        .map(|length| format!("Success {}", length + GRH));
    let all: Vec<String> = all.collect();
    theirs.expect(&format!("complete {}", lengths.len()), &all.join(", "));
}

/// Runs a test over both wires and both IP families.
fn on_each_wire(name: &str, body: impl Fn(&Endpoint, &mut Puppet)) {
    on_loopback(name, |_ferroced| {
        for (local, gid_index) in [(true, V4), (false, V4), (true, V6), (false, V6)] {
            set_local(local);
            let (ours, mut theirs) = pair(QpType::Ud, gid_index);
            for id in 0..RECEIVES {
                theirs.expect(&format!("receive {id} 0 2048"), "done");
            }
            let before = counter("local_sent_bytes");
            // The channel, or the route by UDP, is known before faults are in force.
            send(&ours, &[1]);
            receives(&mut theirs, &[1]);
            let in_memory = counter("local_sent_bytes") > before;
            assert_eq!(in_memory, local && is_chosen());
            body(&ours, &mut theirs);
        }
    });
}

#[test]
fn dropped_and_damaged_datagrams_do_not_arrive() {
    let name = "datagram_faults::dropped_and_damaged_datagrams_do_not_arrive";
    on_each_wire(name, |ours, theirs| {
        for faults in ["drop the 2nd ud SEND", "corrupt the 2nd ud SEND out"] {
            set_faults(ours, faults);
            send(ours, &[11, 12, 13, 14]);
            receives(theirs, &[11, 13, 14]);
            set_faults(ours, "");
            // The next one that arrives is the next one that is sent.
            send(ours, &[15]);
            receives(theirs, &[15]);
        }
    });
}

#[test]
fn repeated_datagrams_arrive_twice() {
    let name = "datagram_faults::repeated_datagrams_arrive_twice";
    on_each_wire(name, |ours, theirs| {
        set_faults(ours, "duplicate the 2nd ud SEND");
        send(ours, &[21, 22, 23]);
        receives(theirs, &[21, 22, 22, 23]);
        set_faults(ours, "");
        send(ours, &[24]);
        receives(theirs, &[24]);
    });
}

#[test]
fn overtaken_datagrams_arrive_behind_others() {
    let name = "datagram_faults::overtaken_datagrams_arrive_behind_others";
    on_each_wire(name, |ours, theirs| {
        set_faults(ours, "reorder the 1st ud SEND by 2");
        send(ours, &[31, 32, 33, 34]);
        receives(theirs, &[32, 33, 31, 34]);
        set_faults(ours, "");
    });
}

#[test]
fn delayed_datagrams_arrive_when_their_time_or_the_faults_end() {
    let name = "datagram_faults::delayed_datagrams_arrive_when_their_time_or_the_faults_end";
    on_each_wire(name, |ours, theirs| {
        set_faults(ours, "delay the 1st ud SEND 1000s");
        send(ours, &[41, 42]);
        receives(theirs, &[42]);
        set_faults(ours, "");
        receives(theirs, &[41]);
        set_faults(ours, "delay ud SEND 1ms");
        send(ours, &[43, 44]);
        receives(theirs, &[43, 44]);
        set_faults(ours, "");
    });
}

#[test]
fn partition_loses_datagrams_until_it_ends() {
    let name = "datagram_faults::partition_loses_datagrams_until_it_ends";
    on_each_wire(name, |ours, theirs| {
        set_faults(ours, "partition");
        send(ours, &[51]);
        set_faults(ours, "");
        send(ours, &[52]);
        receives(theirs, &[52]);
    });
}

/// Programs that `ferroce run --faults` starts share counts. A datagram is judged by its sender, and
/// its receiver knows that by the slot from which it came through memory, as by a UDP port.
#[test]
fn programs_of_a_run_judge_a_datagram_once() {
    let name = "datagram_faults::programs_of_a_run_judge_a_datagram_once";
    on_loopback(name, |_ferroced| {
        let counts = std::env::temp_dir().join(format!("ferroce-counts-{}", std::process::id()));
        std::fs::write(&counts, vec![0; CountsPage::LENGTH]).expect("a file");
        // SAFETY: no other thread of this process reads the environment.
        unsafe {
            std::env::set_var(ferroce_faults::VARIABLE, "drop every 2nd ud SEND");
            std::env::set_var(ferroce_faults::COUNTS_VARIABLE, &counts);
        }
        for local in [true, false] {
            set_local(local);
            let (ours, mut theirs) = pair(QpType::Ud, V4);
            for id in 0..RECEIVES {
                theirs.expect(&format!("receive {id} 0 2048"), "done");
            }
            let before = counter("local_sent_bytes");
            send(&ours, &[61, 62, 63, 64, 65, 66]);
            receives(&mut theirs, &[61, 63, 65]);
            let in_memory = counter("local_sent_bytes") > before;
            assert_eq!(in_memory, local && is_chosen());
            // Answers count, too.
            ours.receive(1, 0, 2048);
            theirs.expect("send 100", "done");
            assert_eq!(ours.succeed(1)[0].byte_len, 100 + GRH);
            theirs.expect("send 100", "done");
        }
        let page = std::fs::read(&counts).expect("the file");
        std::fs::remove_file(&counts).expect("the file");
        assert_eq!(CountsPage::read(&page, 0), Some((16, 8)));
    });
}
