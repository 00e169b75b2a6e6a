//! `ferroce capture`: packets of this process as lines and as pcapng, without root's sockets.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use ferroce_device::transport::{QpType, SendOp, WcStatus};
use ferroce_endpoint::{Endpoint, Options};
use ferroce_testnet::{deadline, isolated, netdev};
use ferroce_wire::{Flow, Mtu, Packet, icrc};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use common::capture::{end, start, tshark};
use common::{Cleanup, fails, ok};

/// A packet of a capture file, from the BTH on.
struct Captured {
    bytes: Vec<u8>,
    flow: Flow,
    ip_id: u16,
    sent: bool,
    comment: String,
}

fn connected(gid_index: u8) -> (Endpoint, Endpoint) {
    connected_by(QpType::Rc, gid_index)
}

fn connected_by(kind: QpType, gid_index: u8) -> (Endpoint, Endpoint) {
    let open = || {
        let options = Options {
            mtu: Some(Mtu::Mtu1024),
            ..Options::new(kind, gid_index)
        };
        Endpoint::open("rxe0", options).expect("a device")
    };
    let (mut left, mut right) = (open(), open());
    left.connect(&right.introduction().expect("known"))
        .expect("connected");
    right
        .connect(&left.introduction().expect("known"))
        .expect("connected");
    (left, right)
}

/// Sends a SEND of 64 bytes, a WRITE and a READ of 10,000 bytes, and a WRITE with a wrong key.
fn exchange(gid_index: u8) -> (u32, u32) {
    let (left, right) = connected(gid_index);
    right.receive(1, 0, 4096).expect("room");
    left.post(2, SendOp::Send { imm: None }, 0, 64)
        .expect("room");
    left.succeed(1).expect("sent");
    right.succeed(1).expect("received");
    left.write(3, 0, 10_000).expect("room");
    left.read(4, 0, 10_000).expect("room");
    left.succeed(2).expect("done");
    let (remote_addr, rkey) = left.remote(0);
    let wrong = SendOp::Write {
        remote_addr,
        rkey: rkey ^ 0xff00,
        imm: None,
    };
    left.post(5, wrong, 0, 8).expect("room");
    let failed = left.completions(1).expect("completed");
    assert_eq!(failed[0].status, WcStatus::RemoteAccess);
    assert_eq!(failed[0].vendor_err(), 0x21);
    (left.qp.qpn(), right.qp.qpn())
}

/// Reads a capture file, and checks the headers in front of each packet.
fn read(file: &Path) -> Vec<Captured> {
    let file = std::fs::File::open(file).expect("a file");
    let mut reader = PcapNgReader::new(file).expect("pcapng");
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(block) = block.expect("valid") else {
            continue;
        };
        let frame = &block.data;
        let (ip, udp) = match frame[12..14] {
            [0x08, 0x00] => (&frame[14..34], &frame[34..]),
            [0x86, 0xdd] => (&frame[14..54], &frame[54..]),
            _ => panic!("not IP"),
        };
        let address = |at: usize| match ip.len() {
            20 => std::net::IpAddr::from(<[u8; 4]>::try_from(&ip[12 + at * 4..][..4]).unwrap()),
            _ => std::net::IpAddr::from(<[u8; 16]>::try_from(&ip[8 + at * 16..][..16]).unwrap()),
        };
        let comments = block.options.iter().filter_map(|option| match option {
            EnhancedPacketOption::Comment(text) => Some(text.to_string()),
            _ => None,
        });
        packets.push(Captured {
            bytes: udp[8..].to_vec(),
            flow: Flow {
                source: address(0),
                destination: address(1),
                source_port: u16::from_be_bytes([udp[0], udp[1]]),
            },
            ip_id: u16::from_be_bytes([ip[4], ip[5]]),
            sent: block.options.contains(&EnhancedPacketOption::Flags(2)),
            comment: comments.collect::<Vec<_>>().join("; "),
        });
    }
    packets
}

/// Returns the packets as text: direction, opcode and PSN relative to the first.
fn summary(packets: &[Captured], sent: bool) -> Vec<String> {
    let all = packets.iter().filter(|packet| packet.sent == sent);
    let mut all: Vec<(u32, String)> = all
        .map(|packet| {
            let packet = Packet::parse(&packet.bytes).expect("RoCE");
            let text = format!("{} {}", packet.opcode(), packet.psn().value());
            (packet.dest_qpn(), text)
        })
        .collect();
    all.sort_by_key(|(qpn, _)| *qpn);
    all.into_iter().map(|(_, text)| text).collect()
}

/// Returns the number of packets that were sent through shared memory.
fn sent_in_memory() -> u64 {
    let text = ok("ferroce stat rxe0");
    let mut words = text.split_whitespace();
    words.find(|word| *word == "local_sent_pkts");
    words
        .next()
        .map_or(0, |count| count.parse().expect("a number"))
}

#[test]
fn every_packet_is_captured_with_its_icrc_and_tshark_has_no_complaint() {
    let name = "every_packet_is_captured_with_its_icrc_and_tshark_has_no_complaint";
    isolated(name, || {
        let _cleanup = Cleanup;
        netdev::add_address("lo", "2001:db8::7/128");
        ok("ferroce link add rxe0 type rxe netdev lo");
        // IPv4 and IPv6, through memory and over UDP.
        let (v4, v6) = ((1, "127.0.0.1"), (2, "2001:db8::7"));
        let cases = [("on", v4), ("on", v6), ("off", v4), ("off", v6)];
        let mut in_memory = 0;
        for (local, (gid_index, address)) in cases {
            ok(&format!("ferroce link set rxe0 local {local}"));
            let file = common::config_dir().with_extension(format!("{local}{gid_index}.pcapng"));
            let capture = start(&format!("rxe0 -w {}", file.display()));
            exchange(gid_index);
            let said = end(capture);
            let packets = read(&file);
            let count = packets.len();
            let sent = sent_in_memory();
            assert_eq!(sent > in_memory, local == "on", "{sent} packets in memory");
            in_memory = sent;
            let end = format!("{count} packets, 0 lost because this command was too slow\n");
            assert_eq!(said, end);
            for packet in &packets {
                assert_eq!(packet.flow.source.to_string(), address);
                let fits = icrc::verify(&packet.flow, packet.ip_id, &packet.bytes);
                assert!(fits, "ICRC of {:?}", Packet::parse(&packet.bytes));
                assert!(packet.bytes.len() <= 1100, "a packet, not a run of them");
            }
            assert_eq!(summary(&packets, true), summary(&packets, false));
            // 1 SEND, 10 packets of the WRITE, the READ and its 10 responses, the wrong WRITE.
            let of = |name: &str| {
                let packets = packets.iter().filter(|packet| packet.sent);
                let parsed = packets.filter_map(|packet| Packet::parse(&packet.bytes).ok());
                parsed
                    .filter(|packet| packet.opcode().to_string().contains(name))
                    .count()
            };
            assert_eq!((of("SEND_ONLY"), of("WRITE_MIDDLE")), (1, 8));
            assert_eq!((of("READ_REQUEST"), of("READ_RESPONSE")), (1, 10));
            let refused = packets.iter().find(|p| p.comment.contains("refused"));
            let comment = &refused.expect("a comment").comment;
            assert!(comment.contains("remote access error"), "{comment}");
            assert!(comment.contains("rkey 0x"), "{comment}");
            let complaint = "_ws.malformed or _ws.expert.severity >= warning";
            if let Some(complaints) = tshark(&file, &["-Y", complaint]) {
                assert_eq!(complaints, "");
                let opcodes = tshark(&file, &["-T", "fields", "-e", "infiniband.bth.opcode"]);
                let opcodes = opcodes.expect("installed");
                assert!(opcodes.lines().all(|line| !line.is_empty()), "{opcodes}");
                assert_eq!(opcodes.lines().count(), count);
            }
        }
    });
}

/// A loaded machine stops the command for a while. Meanwhile a program opens the link, sends and
/// closes it, does so again, and the user presses Ctrl-C.
#[test]
fn capture_that_had_no_processor_shows_programs_that_came_and_went() {
    let name = "capture_that_had_no_processor_shows_programs_that_came_and_went";
    isolated(name, || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let file = common::config_dir().with_extension("pcapng");
        let capture = start(&format!("rxe0 -w {}", file.display()));
        let pid = Pid::from_child(&capture.0);
        stop(pid);
        exchange(1);
        exchange(1);
        kill_process(pid, Signal::INT).expect("it runs");
        kill_process(pid, Signal::CONT).expect("it is stopped");
        end(capture);
        let packets = read(&file);
        let sent = packets.iter().filter(|packet| packet.sent);
        let parsed = sent.filter_map(|packet| Packet::parse(&packet.bytes).ok());
        let opcodes = parsed.map(|packet| packet.opcode().to_string());
        let sends = opcodes.filter(|opcode| opcode.contains("SEND_ONLY"));
        assert_eq!(sends.count(), 2);
    });
}

/// Stops a child, and waits until it is stopped.
fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).expect("it runs");
    let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).expect("a child");
    let (_, status) = stopped.expect("its state changed");
    assert!(status.stopped(), "{status:?}");
}

#[test]
fn lines_show_packets_of_one_queue_pair_and_errors() {
    isolated("lines_show_packets_of_one_queue_pair_and_errors", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let file = common::config_dir().with_extension("pcapng");
        // A reader that knows when to end.
        let (mut first, _messages) = start("--count 1");
        let (mut lines, messages) = start("--errors");
        let capture = start(&format!("-w {} --snap 60", file.display()));
        let (left, _) = exchange(1);
        assert_eq!(read_all(first.stdout.take()).lines().count(), 1);
        assert!(first.wait().expect("it ends").success());
        let output = lines.stdout.take();
        end((lines, messages));
        let text = read_all(output);
        let pid = std::process::id();
        assert!(text.lines().all(|line| line.contains(&format!("/{pid}  "))));
        assert!(text.contains("RC WRITE_ONLY"), "{text}");
        assert!(
            text.contains("[refused: NAK \"remote access error\""),
            "{text}"
        );
        assert!(text.contains("NAK remote access error msn"), "{text}");
        assert!(text.contains(" rkey 0x"), "{text}");
        let said = end(capture);
        let packets = read(&file);
        assert!(said.starts_with(&format!("{} packets, 0 lost", packets.len())));
        // A busy machine may cause probes, which are trouble as well.
        assert!((3..packets.len()).contains(&text.lines().count()), "{text}");
        assert!(packets.iter().all(|packet| packet.bytes.len() <= 60));
        assert!(packets.iter().any(|packet| packet.bytes.len() == 60));
        // The same packets again, of one queue pair.
        let file = file.with_extension("one");
        let capture = start(&format!("-w {} --qp {left:#x} --pid {pid}", file.display()));
        end(capture);
        assert_eq!(read(&file).len(), 0, "no traffic");
    });
}

fn read_all(output: Option<ChildStdout>) -> String {
    let mut text = String::new();
    let mut output = output.expect("piped");
    output.read_to_string(&mut text).expect("text");
    text
}

/// Returns the name of this process, as ferroced knows it.
fn own_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").expect("a name");
    name.trim().to_owned()
}

#[test]
fn pipe_into_tshark_is_live_and_program_selects() {
    isolated("pipe_into_tshark_is_live_and_program_selects", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let other = start("--program no-such-program");
        let mut capture = start(&format!("-w - --program {}", own_name()));
        let pipe = capture.0.stdout.take().expect("piped");
        let reader = Command::new("tshark")
            .args([
                "-l",
                "-r",
                "-",
                "-T",
                "fields",
                "-e",
                "infiniband.bth.opcode",
            ])
            .args(["-e", "_ws.expert.message"])
            .stdin(pipe)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut reader) = reader else {
            let line = "*** SKIPPED: tshark, which reads the capture, is not installed ***";
            assert!(std::env::var_os("CI").is_none(), "{line}");
            return eprintln!("{line}");
        };
        exchange(1);
        // The first packet arrives while the capture runs.
        let mut lines = BufReader::new(reader.stdout.take().expect("piped")).lines();
        let first = lines.next().expect("a packet").expect("text");
        assert!(first.starts_with("4\t"), "SEND_ONLY of RC: {first}");
        let said = end(capture);
        let packets = 1 + lines
            .inspect(|line| assert!(line.is_ok(), "{line:?}"))
            .count();
        assert!(reader.wait().expect("it ends").success());
        assert!(
            said.starts_with(&format!("{packets} packets, 0 lost")),
            "{said}"
        );
        assert!(end(other).starts_with("0 packets"));
    });
}

#[test]
fn messages_of_the_connection_manager_are_captured_after_a_restart_too() {
    let name = "messages_of_the_connection_manager_are_captured_after_a_restart_too";
    isolated(name, || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let (left, right) = connected(1);
        let file = common::config_dir().with_extension("pcapng");
        let mut capture = start(&format!("-w {}", file.display()));
        ok("ferroce ping --count 1 --no-mtu 127.0.0.1");
        left.write(1, 0, 10).expect("room");
        left.succeed(1).expect("written");
        common::end_daemon();
        // Commands start the next ferroced.
        ok("ferroce link");
        let mut heard = String::new();
        for expected in ["ferroced has ended;", "ferroced runs again;"] {
            heard.clear();
            capture.1.read_line(&mut heard).expect("text");
            assert!(heard.starts_with(expected), "{heard}");
        }
        // ferroced answers once this process has returned its sockets.
        deadline::until("the new ferroced answers", || {
            let ping = common::run("ferroce ping --count 1 --no-mtu 127.0.0.1");
            ping.status.success()
        });
        left.write(2, 0, 10).expect("room");
        left.succeed(1).expect("written");
        end(capture);
        let packets = read(&file);
        let of = |qpn: u32| {
            let parsed = packets.iter().filter(|packet| packet.sent);
            let parsed = parsed.filter_map(|packet| Packet::parse(&packet.bytes).ok());
            parsed.filter(|packet| packet.dest_qpn() == qpn).count()
        };
        // Each write once: the program is not captured twice after the restart.
        assert_eq!(of(right.qp.qpn()), 2);
        assert!(of(1) >= 2, "{} messages", of(1));
        let received = packets.iter().filter(|packet| !packet.sent);
        let manager = received.filter_map(|packet| Packet::parse(&packet.bytes).ok());
        assert!(manager.filter(|packet| packet.dest_qpn() == 1).count() >= 2);
        for packet in &packets {
            let fits = icrc::verify(&packet.flow, packet.ip_id, &packet.bytes);
            assert!(fits, "ICRC of {:?}", Packet::parse(&packet.bytes));
        }
        let complaint = "_ws.malformed or _ws.expert.severity >= warning";
        if let Some(complaints) = tshark(&file, &["-Y", complaint]) {
            assert_eq!(complaints, "");
        }
    });
}

/// Two unmodified programs for each run: a server that ends by itself, and its client.
const PROGRAMS: [(&str, &str); 3] = [
    (
        "ib_send_bw",
        "ib_send_bw -d rxe0 -x 1 -n 10 -s 10000 >/dev/null & server=$!
         until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do kill -0 $server; done
         ib_send_bw -d rxe0 -x 1 -n 10 -s 10000 127.0.0.1 >/dev/null
         wait $server",
    ),
    (
        "rping",
        "rping -s -a 127.0.0.1 -C 3 & server=$!
         until rdma resource show cm_id | grep -q LISTEN; do kill -0 $server; done
         rping -c -a 127.0.0.1 -C 3 -V
         wait $server || true",
    ),
    (
        "ibv_ud_pingpong",
        "ibv_ud_pingpong -d rxe0 -g 1 -n 10 >/dev/null & server=$!
         until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do kill -0 $server; done
         ibv_ud_pingpong -d rxe0 -g 1 -n 10 127.0.0.1 >/dev/null
         wait $server",
    ),
];

#[test]
fn tshark_has_no_complaint_about_unmodified_programs() {
    let name = "tshark_has_no_complaint_about_unmodified_programs";
    common::with_libraries(name, || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        for (program, script) in PROGRAMS {
            if !Path::new("/usr/bin").join(program).exists() {
                let line = format!("*** SKIPPED: {program} is not installed ***");
                assert!(std::env::var_os("CI").is_none(), "{line}");
                eprintln!("{line}");
                continue;
            }
            let file = common::config_dir().with_extension(program);
            let capture = start(&format!("-w {}", file.display()));
            let output = Command::new(common::FERROCE)
                .args(["run", "--", "sh", "-ec", script])
                .stdin(Stdio::null())
                .output()
                .expect("ferroce starts");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program}: {errors}");
            let said = end(capture);
            let packets = read(&file);
            let expected = format!("{} packets, 0 lost", packets.len());
            assert!(
                said.starts_with(&expected) && packets.len() > 10,
                "{program}: {said}"
            );
            for packet in &packets {
                let fits = icrc::verify(&packet.flow, packet.ip_id, &packet.bytes);
                assert!(
                    fits,
                    "{program}: ICRC of {:?}",
                    Packet::parse(&packet.bytes)
                );
            }
            // rping connects through the connection manager.
            let of_manager = |packet: &&Captured| {
                Packet::parse(&packet.bytes).is_ok_and(|packet| packet.dest_qpn() == 1)
            };
            let messages = packets.iter().filter(of_manager).count();
            assert_eq!(
                messages > 0,
                program == "rping",
                "{program}: {messages} messages"
            );
            let complaint = "_ws.malformed or _ws.expert.severity >= warning";
            if let Some(complaints) = tshark(&file, &["-Y", complaint]) {
                assert_eq!(complaints, "", "{program}");
            }
        }
    });
}

/// Captures two packets with a command, whose messages and lines are on one terminal or pipe.
fn two_lines(command: &mut Command) -> String {
    let mut capture = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut output = BufReader::new(capture.stdout.take().expect("piped"));
    let mut text = String::new();
    while !text.contains("capturing") {
        assert_ne!(output.read_line(&mut text).expect("text"), 0, "{text}");
    }
    let _ends = exchange(1);
    output.read_to_string(&mut text).expect("text");
    assert!(capture.wait().expect("it ends").success(), "{text}");
    assert!(text.contains("RC SEND_ONLY"), "{text}");
    text
}

#[test]
fn lines_are_coloured_on_a_terminal_only() {
    isolated("lines_are_coloured_on_a_terminal_only", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let line = format!("{} capture --count 2 2>&1", common::FERROCE);
        // script(1) runs its command on a terminal of its own.
        let on_terminal = |no_color: &str| {
            let mut script = Command::new("script");
            script.args(["-qec", &line, "/dev/null"]);
            two_lines(script.env("NO_COLOR", no_color))
        };
        assert!(on_terminal("").contains("\x1b[1mRC SEND_ONLY\x1b[0m"));
        assert!(!on_terminal("1").contains('\x1b'));
        let in_pipe = two_lines(Command::new("sh").args(["-c", &line]));
        assert!(!in_pipe.contains('\x1b'), "{in_pipe}");
    });
}

/// SENDs of a UC queue pair, which is neither acknowledged nor sent again: the order of its packets
/// is that of the posts. Returns the captured packets that were sent.
fn capture_faults(file: &Path, faults: &str) -> Vec<Captured> {
    let capture = start(&format!("-w {}", file.display()));
    let status = Command::new(std::env::current_exe().expect("known"))
        .args(["faults_are_comments_and_the_same_for_a_seed", "--exact"])
        .env(ROLE, "1")
        .env("FERROCE_FAULTS", faults)
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("it runs").success());
    end(capture);
    let packets = read(file);
    packets.into_iter().filter(|packet| packet.sent).collect()
}

/// The variable that makes a test the program that is captured.
const ROLE: &str = "CAPTURE_TEST_ROLE";

/// Sends 200 messages of one packet.
fn send_unreliably() {
    let (left, _right) = connected_by(QpType::Uc, 1);
    for number in 0..200 {
        left.post(number, SendOp::Send { imm: None }, 0, 64)
            .expect("room");
        left.succeed(1).expect("sent");
    }
}

#[test]
fn faults_are_comments_and_the_same_for_a_seed() {
    if std::env::var_os(ROLE).is_some() {
        return send_unreliably();
    }
    isolated("faults_are_comments_and_the_same_for_a_seed", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let file = common::config_dir().with_extension("pcapng");
        let faults = "seed 7; loss 20%; duplicate 10%; corrupt 10%; reorder 10% by 2; \
                      delay the 3rd to 9th packet 1ms; drop the 100th packet";
        let told = |faults: &str| -> Vec<(Vec<u8>, String)> {
            let packets = capture_faults(&file, faults);
            let psn = |bytes: &[u8]| Packet::parse(bytes).expect("RoCE").psn().value();
            let first = psn(&packets[0].bytes);
            let told = packets.into_iter().map(|packet| {
                // Each process has other queue pair numbers and PSNs, and so other ICRCs.
                let mut bytes = packet.bytes;
                let (psn, end) = (psn(&bytes) - first, bytes.len() - 4);
                bytes[5..8].fill(0);
                bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
                bytes[end..].fill(0);
                (bytes, packet.comment)
            });
            told.collect()
        };
        let (first, second) = (told(faults), told(faults));
        assert_eq!(first.len(), 200);
        assert_eq!(first, second, "the same seed is the same weather");
        let other = told(&faults.replace("seed 7", "seed 8"));
        assert_ne!(first, other, "another seed is another weather");
        let with = |text: &str| first.iter().filter(|(_, c)| c.contains(text)).count();
        for (text, most) in [
            ("dropped by fault: loss 20%", 80),
            ("sent 2 times by fault: duplicate 10%", 50),
            ("corrupted by fault: corrupt 10%", 50),
            ("held back behind 2 by fault: reorder 10% by 2", 50),
        ] {
            assert!((5..most).contains(&with(text)), "{text}: {}", with(text));
        }
        let late = with("delayed 1 ms by fault: delay the 3rd to 9th packet 1ms");
        assert!((1..=7).contains(&late), "{late}");
        let silent = with("") - with("by fault");
        assert!(silent > 50, "{silent} packets meet no fault");
    });
}

#[test]
fn wrong_arguments_are_named() {
    isolated("wrong_arguments_are_named", || {
        let _cleanup = Cleanup;
        let said = fails("ferroce capture");
        assert!(said.contains("ferroce link add"), "{said}");
        ok("ferroce link add rxe0 type rxe netdev lo");
        let said = fails("ferroce capture rxe7");
        assert!(said.contains("link rxe7 does not exist"), "{said}");
        let said = common::fails_with(2, "ferroce capture --qp 0xyz");
        assert!(said.contains("65553 or 0x10011"), "{said}");
        let said = fails("ferroce capture -w /no/such/file");
        assert!(said.contains("cannot write /no/such/file"), "{said}");
    });
}
