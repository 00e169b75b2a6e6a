use ferroce_wire::{Aeth, Bth, HeaderBuf, Opcode, Operation, Psn, Syndrome, Transport};

use super::*;
use crate::counts::LocalCounts;
use crate::plan::Answer;

const MS: u64 = 1_000_000;

fn peer() -> IpAddr {
    [10, 0, 0, 2].into()
}

fn weather(text: &str) -> Weather {
    let plan = Arc::new(Plan::parse(text).unwrap_or_else(|error| panic!("{error}")));
    Weather::for_packets(plan, Arc::new(LocalCounts::default()))
}

fn packet(operation: Operation, qpn: u32, psn: u32, payload: usize) -> Vec<u8> {
    let opcode = Opcode::new(Transport::Rc, operation).unwrap();
    let mut header = HeaderBuf::new(&Bth::new(opcode, qpn, Psn::new(psn)));
    if operation == Operation::Acknowledge {
        header.aeth(&Aeth {
            syndrome: Syndrome::ACK_UNLIMITED,
            msn: 1,
        });
    }
    let mut bytes = header.finish().as_bytes().to_vec();
    bytes.resize(bytes.len() + payload + 4, 0xab);
    bytes
}

fn send(psn: u32) -> Vec<u8> {
    packet(Operation::SendOnly, 0x11, psn, 64)
}

fn ack(psn: u32) -> Vec<u8> {
    packet(Operation::Acknowledge, 0x12, psn, 0)
}

/// Returns one letter for each of `count` SENDs: `.` passed, `x` lost, `2` twice, `~` damaged.
fn letters(weather: &mut Weather, count: u32) -> String {
    let letter = |fate: Fate| match fate {
        Fate { copies: 0, .. } => 'x',
        Fate { copies: 2, .. } => '2',
        Fate {
            damage: Some(_), ..
        } => '~',
        Fate { behind: 1.., .. } => '<',
        _ => '.',
    };
    let fate = |psn| weather.judge(0, Direction::Out, peer(), &send(psn), false);
    (0..count).map(fate).map(letter).collect()
}

#[test]
fn the_same_seed_is_the_same_weather() {
    let text = "loss 10%; duplicate 10%; corrupt 10%; reorder 10%; seed 7";
    let first = letters(&mut weather(text), 400);
    assert_eq!(first, letters(&mut weather(text), 400));
    let other = text.replace("seed 7", "seed 8");
    assert_ne!(first, letters(&mut weather(&other), 400));
    for letter in ".x2~<".chars() {
        assert!(first.contains(letter), "{letter}: {first}");
    }
}

#[test]
fn weather_of_a_queue_pair_depends_on_no_other() {
    let mut alone = weather("loss 20% seed 3");
    let alone = letters(&mut alone, 200);
    let mut both = weather("loss 20% seed 3");
    let mut mixed = String::new();
    for psn in 0..200 {
        mixed += &letters(&mut both, 1);
        let other = packet(Operation::SendOnly, 0x77, psn, 8);
        both.judge(0, Direction::Out, peer(), &other, false);
    }
    assert_eq!(alone, mixed);
}

#[test]
fn loss_and_bursts_have_the_rate_that_was_asked_for() {
    let lost = |text| {
        let letters = letters(&mut weather(text), 100_000);
        let bursts = letters.split('.').filter(|burst| !burst.is_empty()).count();
        let lost = letters.matches('x').count();
        (lost, lost as f64 / bursts as f64)
    };
    let (single, length) = lost("loss 5% seed 1");
    assert!(
        (4_700..5_300).contains(&single) && length < 1.1,
        "{single} {length}"
    );
    let (bursts, length) = lost("loss 5% burst 8 seed 1");
    assert!((4_000..6_000).contains(&bursts), "{bursts}");
    assert!((7.0..9.0).contains(&length), "{length}");
    let (gilbert, _) = lost("loss gilbert 1% 9% 50% seed 1");
    assert!(
        (4_000..6_000).contains(&gilbert),
        "{gilbert}: half of a tenth"
    );
}

#[test]
fn schedule_counts_only_selected_packets() {
    let mut weather = weather("drop the 2nd to 3rd ACK");
    let mut lost = |bytes: &[u8]| {
        let fate = weather.judge(0, Direction::In, peer(), bytes, false);
        fate.is_lost()
    };
    assert!(!lost(&ack(1)));
    assert!(!lost(&send(1)), "not an ACK");
    assert!(lost(&ack(2)) && lost(&ack(3)));
    assert!(!lost(&ack(4)));
}

#[test]
fn processes_that_share_counts_share_a_schedule() {
    let plan = Arc::new(Plan::parse("drop the 3rd packet").unwrap());
    let counts: Arc<dyn Counts> = Arc::new(LocalCounts::default());
    let mut one = Weather::for_packets(Arc::clone(&plan), Arc::clone(&counts));
    let mut two = Weather::for_packets(plan, Arc::clone(&counts));
    let lost: Vec<bool> = (0..3)
        .flat_map(|psn| {
            let out = one.judge(0, Direction::Out, peer(), &send(psn), false);
            let into = two.judge(0, Direction::In, peer(), &send(psn), false);
            [out.is_lost(), into.is_lost()]
        })
        .collect();
    assert_eq!(lost, [false, false, true, false, false, false]);
    assert_eq!(counts.read(0), (6, 1));
}

#[test]
fn packet_that_its_sender_has_judged_meets_only_rules_for_received_packets() {
    let mut both = weather("drop 100%");
    assert!(
        !both
            .judge(0, Direction::In, peer(), &send(1), true)
            .is_lost()
    );
    assert!(
        both.judge(0, Direction::In, peer(), &send(1), false)
            .is_lost()
    );
    let mut only = weather("drop 100% in");
    assert!(
        only.judge(0, Direction::In, peer(), &send(1), true)
            .is_lost()
    );
}

#[test]
fn delayed_packets_keep_their_order() {
    let mut weather = weather("delay 2ms jitter 1ms");
    let mut last = 0;
    let mut delays = Vec::new();
    for psn in 0..100 {
        let now = u64::from(psn) * 10_000;
        let fate = weather.judge(now, Direction::Out, peer(), &send(psn), false);
        let due = fate.due.unwrap();
        assert!(due >= last && due >= now + MS);
        (last, _) = (due, delays.push(due - now));
    }
    assert!(delays.iter().max() > delays.iter().min());
    assert!(delays.iter().max().unwrap() <= &(3 * MS));
}

#[test]
fn rate_spaces_packets_and_a_full_queue_loses_them() {
    let mut weather = weather("rate 8mbit queue 1ms");
    let mut due = |psn| weather.judge(0, Direction::Out, peer(), &send(psn), false);
    // 12 + 64 + 4 bytes, and 28 of UDP and IP: 108 us at a byte per microsecond.
    assert_eq!(due(0).due, Some(108_000));
    assert_eq!(due(1).due, Some(216_000));
    let lost = (2..20).filter(|psn| due(*psn).is_lost()).count();
    assert_eq!(lost, 10, "1 ms of queue has room for ten");
}

#[test]
fn black_hole_swallows_long_packets_only() {
    let mut weather = weather("blackhole 500");
    let mut lost = |payload| {
        let bytes = packet(Operation::SendOnly, 1, 0, payload);
        weather
            .judge(0, Direction::Out, peer(), &bytes, false)
            .is_lost()
    };
    assert!(!lost(456) && lost(460));
}

#[test]
fn partition_has_a_beginning_and_an_end() {
    let mut weather = weather("partition at 2ms for 3ms");
    let mut lost = |ms: u64| {
        weather
            .judge(ms * MS, Direction::Out, peer(), &send(0), false)
            .is_lost()
    };
    let lost: Vec<u64> = (10..20).filter(|ms| lost(*ms)).collect();
    assert_eq!(lost, [12, 13, 14]);
}

#[test]
fn only_positive_responses_are_replaced() {
    let mut weather = weather("nak access 100%");
    let mut answer = |bytes: &[u8]| weather.judge(0, Direction::In, peer(), bytes, false).answer;
    assert_eq!(answer(&ack(1)), Some(Answer::Access));
    assert_eq!(answer(&send(1)), None);
}

#[test]
fn queue_pair_fails_after_the_packets_that_were_asked_for() {
    let mut weather = weather("qp error after 3 packets");
    for psn in 0..5 {
        weather.judge(0, Direction::In, peer(), &send(psn), false);
        let expected = (psn == 2).then_some(Provoked::QpError(0x11));
        assert_eq!(weather.poll_event(), expected, "packet {psn}");
    }
}

#[test]
fn port_goes_down_and_up_by_the_clock() {
    let mut weather = weather("port down at 5ms for 2ms");
    weather.begin(100 * MS);
    assert_eq!(weather.next_timeout(), Some(105 * MS));
    weather.handle_timeout(105 * MS);
    assert_eq!(weather.poll_event(), Some(Provoked::Port { up: false }));
    assert!(
        weather
            .judge(106 * MS, Direction::In, peer(), &send(0), false)
            .is_lost()
    );
    assert_eq!(weather.next_timeout(), Some(107 * MS));
    weather.handle_timeout(107 * MS);
    assert_eq!(weather.poll_event(), Some(Provoked::Port { up: true }));
    assert_eq!((weather.poll_event(), weather.next_timeout()), (None, None));
    assert!(
        !weather
            .judge(108 * MS, Direction::In, peer(), &send(0), false)
            .is_lost()
    );
}

#[test]
fn messages_of_the_connection_manager_have_rules_of_their_own() {
    let plan = Arc::new(
        Plan::parse("drop the 1st REP; reject the 2nd REQ; loss 100%; partition at 1s").unwrap(),
    );
    let mut weather = Weather::for_connection_manager(plan, Arc::new(LocalCounts::default()));
    let mut judge = |now: u64, attribute: u16| {
        let mut mad = [0; 256];
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        let fate = weather.judge(now, Direction::Out, peer(), &mad, false);
        (fate.is_lost(), fate.rejected)
    };
    assert_eq!(judge(0, 0x10), (false, false));
    assert_eq!(judge(0, 0x10), (true, true));
    assert_eq!(judge(0, 0x13), (true, false));
    assert_eq!(judge(0, 0x13), (false, false));
    assert_eq!(
        judge(1000 * MS, 0x14),
        (true, false),
        "a partition has no exceptions"
    );
}
