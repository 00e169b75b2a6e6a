use super::*;
use crate::record::{Direction, Record};

fn path() -> PathRecord {
    PathRecord {
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        source_port: 0xc001,
        traffic_class: 3,
        hop_limit: 64,
    }
}

fn journal() -> (JournalFile, JournalWriter) {
    let file = JournalFile::new().unwrap();
    let writer = JournalWriter::new(&file).unwrap();
    (file, writer)
}

/// Writes `packets` packets from a PSN on, with a time.
fn write(writer: &JournalWriter, qpn: u32, psn: u32, packets: usize, time_ns: u64) {
    let mut bytes = [0x2a; 60];
    bytes[8..12].copy_from_slice(&psn.to_be_bytes());
    let packet = PacketRecord {
        time_ns,
        direction: Direction::Sent,
        length: 1044,
        packets,
        bytes: &bytes,
        captured: bytes.len(),
    };
    let ring = writer.ring(qpn, packet.direction, path, || true);
    if let Some(ring) = ring {
        ring.packet(&packet);
    }
}

fn stories(file: &JournalFile) -> Vec<QpStory> {
    JournalReader::new(file).unwrap().stories()
}

fn psn(record: &Record<'_>) -> u32 {
    u32::from_be_bytes([0, record.bytes[9], record.bytes[10], record.bytes[11]])
}

#[test]
fn last_records_of_each_queue_pair_are_kept() {
    let (file, writer) = journal();
    assert!(file.is_empty());
    for number in 0..10_000 {
        write(&writer, 7, number, 1, number.into());
    }
    write(&writer, 8, 1, 1, 9);
    assert!(!file.is_empty() && !file.has_failure());
    let again = JournalFile::from_fd(file.try_clone().unwrap().into()).unwrap();
    drop((writer, file));
    let stories = stories(&again);
    assert_eq!(stories.len(), 2);
    assert_eq!((stories[0].qpn, stories[0].is_cut), (7, true));
    let times: Vec<u64> = stories[0].records().map(|r| r.time_ns).collect();
    assert_eq!(times, (10_000 - STORY as u64..10_000).collect::<Vec<u64>>());
    let record = stories[1].records().next().unwrap();
    assert!(!stories[1].is_cut);
    assert_eq!((record.qpn, record.time_ns, record.length), (8, 9, 1044));
    assert_eq!(
        (record.direction, record.bytes.len()),
        (Direction::Sent, 48)
    );
    assert_eq!(
        (record.source, record.destination),
        (path().source, path().destination)
    );
    assert_eq!(
        (record.source_port, record.traffic_class, record.hop_limit),
        (0xc001, 3, 64)
    );
}

#[test]
fn uniform_run_is_one_cell_and_many_packets() {
    let (file, writer) = journal();
    write(&writer, 7, 0xff_fffe, 4, 1);
    let stories = stories(&file);
    let psns: Vec<u32> = stories[0].records().map(|record| psn(&record)).collect();
    assert_eq!(psns, [0xff_fffe, 0xff_ffff, 0, 1]);
}

#[test]
fn short_packets_and_texts_are_read_as_they_were_written() {
    let (file, writer) = journal();
    let ack: Vec<u8> = (0..20).collect();
    for bytes in [&ack[..], &ack[..16], &[9; 30]] {
        let packet = PacketRecord {
            time_ns: 1,
            direction: Direction::Received,
            length: bytes.len(),
            packets: 1,
            bytes,
            captured: bytes.len(),
        };
        let ring = writer.ring(7, packet.direction, path, || true);
        ring.unwrap().packet(&packet);
    }
    let text = "ä".repeat(300);
    for text in ["dropped: no receive posted", &text] {
        let record = Record {
            qpn: 7,
            direction: Direction::Received,
            trouble: true,
            source: "2001:db8::1".parse().unwrap(),
            destination: "2001:db8::2".parse().unwrap(),
            length: 20,
            bytes: &ack,
            text,
            ..Record::default()
        };
        writer.record(&record, || true);
    }
    let stories = stories(&file);
    let records: Vec<Record<'_>> = stories[0].records().collect();
    let lengths: Vec<usize> = records.iter().map(|r| r.bytes.len()).collect();
    assert_eq!(lengths, [20, 16, 30, 20, 20]);
    assert_eq!((records[0].bytes, records[3].bytes), (&ack[..], &ack[..]));
    assert_eq!(records[3].text, "dropped: no receive posted");
    assert!(records[3].trouble && !records[0].trouble);
    assert_eq!(records[3].source.to_string(), "2001:db8::1");
    assert_eq!(records[4].text, "ä".repeat(120), "240 bytes");
}

#[test]
fn oldest_record_may_be_cut_in_the_middle() {
    let (file, writer) = journal();
    let record = |time_ns| Record {
        qpn: 7,
        time_ns,
        text: "a decision that takes two cells of the ring, in words",
        ..Record::default()
    };
    for time in 0..10_000 {
        writer.record(&record(time), || true);
    }
    write(&writer, 7, 1, 1, 10_000);
    let stories = stories(&file);
    let times: Vec<u64> = stories[0].records().map(|r| r.time_ns).collect();
    assert!(times.len() > 150, "{}", times.len());
    assert_eq!(times.last(), Some(&10_000));
    assert!(times.is_sorted() && stories[0].is_cut);
    let texts = stories[0].records().rev().skip(1).map(|r| r.text.len());
    assert!(
        texts
            .into_iter()
            .all(|length| length == record(0).text.len())
    );
}

#[test]
fn ring_of_a_destroyed_queue_pair_makes_room_for_a_new_one() {
    let (file, writer) = journal();
    let room = (RINGS - SPARE_RINGS) as u32;
    for qpn in 1..=room {
        write(&writer, qpn, 1, 1, 0);
    }
    write(&writer, 0x1_0000, 1, 1, 0);
    assert!(
        stories(&file).iter().all(|story| story.qpn != 0x1_0000),
        "no ring is left"
    );
    writer.forget(1);
    writer.forget(2);
    write(&writer, 0x1_0001, 1, 1, 0);
    let stories = stories(&file);
    assert_eq!(stories.len(), room as usize);
    assert!(stories.iter().all(|story| story.qpn != 1), "the oldest one");
    assert!(stories.iter().any(|story| story.qpn == 2), "still readable");
    assert!(stories.iter().any(|story| story.qpn == 0x1_0001));
}

#[test]
fn failure_is_written_even_if_no_ring_is_left() {
    let (file, writer) = journal();
    for qpn in 1..=RINGS as u32 {
        write(&writer, qpn, 1, 1, 0);
    }
    let failure = Record {
        qpn: 0x1_0000,
        length: 0x30,
        text: "no answer",
        ..Record::default()
    };
    writer.record(&failure, || false);
    assert!(file.has_failure());
    let stories = stories(&file);
    let story = stories.iter().find(|story| story.qpn == 0x1_0000).unwrap();
    assert_eq!(story.failure().unwrap().text, "no answer");
}

#[test]
fn new_queue_pair_with_an_old_number_has_a_story_of_its_own() {
    let (file, writer) = journal();
    write(&writer, 7, 1, 1, 1);
    writer.forget(7);
    write(&writer, 7, 2, 1, 2);
    let stories = stories(&file);
    assert_eq!(stories.len(), 2);
    assert!(stories.iter().all(|story| story.records().count() == 1));
}

#[test]
fn packets_to_unknown_queue_pairs_take_no_ring() {
    let (file, writer) = journal();
    let ring = writer.ring(7, Direction::Received, path, || false);
    assert!(ring.is_none());
    assert!(file.is_empty());
}

#[test]
fn queue_pair_with_another_peer_has_another_path() {
    let (file, writer) = journal();
    write(&writer, 7, 1, 1, 1);
    writer.path_changes(7);
    let packet = PacketRecord {
        time_ns: 2,
        direction: Direction::Sent,
        length: 20,
        packets: 1,
        bytes: &[0; 20],
        captured: 20,
    };
    let other = PathRecord {
        destination: [10, 0, 0, 9].into(),
        ..path()
    };
    let ring = writer.ring(7, packet.direction, || other, || true);
    ring.unwrap().packet(&packet);
    let stories = stories(&file);
    let last = stories[0].records().next_back().unwrap();
    assert_eq!(last.destination, other.destination);
}

#[test]
fn replaced_journal_begins_empty_and_takes_the_next_records() {
    let (old, writer) = journal();
    write(&writer, 7, 1, 1, 1);
    let new = JournalFile::new().unwrap();
    writer.replace(&new).unwrap();
    assert!(new.is_empty());
    write(&writer, 7, 2, 1, 2);
    let times = |file| {
        stories(file)[0]
            .records()
            .map(|r| r.time_ns)
            .collect::<Vec<_>>()
    };
    assert_eq!((times(&old), times(&new)), (vec![1], vec![2]));
}

#[test]
fn failure_is_the_last_record_with_a_code() {
    let (file, writer) = journal();
    for (code, text) in [(0x30, "no answer"), (0x61, "overflow"), (0, "go back")] {
        let record = Record {
            qpn: 9,
            length: code,
            text,
            ..Record::default()
        };
        writer.record(&record, || true);
    }
    for psn in 0..2 * STORY as u32 - 20 {
        write(&writer, 9, psn, 1, 5);
    }
    let stories = stories(&file);
    let failure = stories[0].failure().unwrap();
    assert_eq!((failure.length, failure.text), (0x61, "overflow"));
}

#[test]
fn reader_survives_any_contents() {
    let (file, writer) = journal();
    write(&writer, 7, 1, 1, 1);
    // Words of a broken program, in all cells and in front of the ring.
    for word in [u64::MAX, 0x0003_ff00_0000_0000, 0x0101_0630_ffff_0000] {
        for offset in (front(0) + 8..front(1)).step_by(8) {
            rustix::io::pwrite(&file, &word.to_ne_bytes(), offset as u64).unwrap();
        }
        let _no_panic = stories(&file);
    }
}

#[test]
fn datagram_has_the_addresses_of_its_own_peer() {
    let (file, writer) = journal();
    let other = PathRecord {
        destination: "2001:db8::9".parse().unwrap(),
        source: "2001:db8::1".parse().unwrap(),
        ..path()
    };
    let peers = [path(), other, path()];
    for (time_ns, peer) in (1..).zip(&peers) {
        let packet = PacketRecord {
            time_ns,
            direction: Direction::Sent,
            length: 100,
            packets: 1,
            bytes: &[5; 60],
            captured: 20,
        };
        let ring = writer.ring(7, packet.direction, || *peer, || true);
        ring.unwrap().datagram(&packet, peer);
    }
    let stories = stories(&file);
    let seen: Vec<_> = stories[0]
        .records()
        .map(|r| (r.time_ns, r.source, r.destination, r.bytes.len()))
        .collect();
    let expected: Vec<_> = (1..)
        .zip(&peers)
        .map(|(time, peer)| (time, peer.source, peer.destination, 20))
        .collect();
    assert_eq!(seen, expected);
}
