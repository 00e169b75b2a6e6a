//! `rdma`: the commands of guides and scripts, with this executable called by that name.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use ferroce_cm::PortSpace;
use ferroce_cm::ports::Host;
use ferroce_control::{CmAnswer, CmCall, Reply, Request, find_daemon};
use ferroce_device::transport::QpType;
use ferroce_endpoint::{Endpoint, Options};
use ferroce_testnet::{deadline, isolated, netdev};

use common::{Cleanup, fails, ok};

#[test]
fn output_for_links_and_devices_is_that_of_iproute2() {
    isolated("output_for_links_and_devices_is_that_of_iproute2", || {
        let _cleanup = Cleanup;
        assert_eq!(ok("rdma link"), "");
        assert_eq!(ok("rdma dev"), "");
        assert_eq!(ok("rdma resource"), "");
        netdev::add_veth("ens3", "far");
        netdev::add_address("ens3", "10.0.0.1/24");
        netdev::set_mac("ens3", [0x52, 0x54, 0x00, 0xd5, 0xe0, 0xfb]);
        netdev::set_up("ens3");
        netdev::set_up("far");
        assert_eq!(ok("rdma link add rxe_ens3 type rxe netdev ens3"), "");
        let line = "link rxe_ens3/1 state ACTIVE physical_state LINK_UP netdev ens3 \n";
        for command in [
            "link",
            "link show",
            "li sh rxe_ens3/1",
            "link list rxe_ens3",
        ] {
            assert_eq!(ok(&format!("rdma {command}")), line, "{command}");
        }
        assert!(ok("rdma link -j -p").contains("\"ifname\": \"rxe_ens3\""));
        let device = "0: rxe_ens3: node_type ca node_guid 5054:00ff:fed5:e0fb \
                      sys_image_guid 5054:00ff:fed5:e0fb \n";
        assert_eq!(ok("rdma dev"), device);
        assert_eq!(ok("rdma dev show rxe_ens3"), device);
        assert!(ok("rdma -d dev").contains("\n    caps: <BAD_PKEY_CNTR, "));
        let json = ok("rdma -j dev");
        assert!(
            json.starts_with(r#"[{"ifindex":0,"ifname":"rxe_ens3","node_type":"ca","#),
            "{json}"
        );
        assert_eq!(ok("rdma system"), "netns exclusive copy-on-fork on \n");
        assert_eq!(ok("rdma system set netns exclusive"), "");
        assert_eq!(
            ok("rdma resource"),
            "0: rxe_ens3: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0 \n"
        );
        assert!(
            ok("rdma statistic show link rxe_ens3/1").starts_with("link rxe_ens3/1 sent_pkts 0 ")
        );
        assert_eq!(ok("rdma statistic"), ok("rdma stat show"));
        assert_eq!(ok("rdma statistic qp show"), "");
        assert_eq!(ok("rdma link delete rxe_ens3"), "");
        assert_eq!(ok("rdma link"), "");
    });
}

#[test]
fn batch_stops_at_the_first_error_unless_forced() {
    isolated("batch_stops_at_the_first_error_unless_forced", || {
        let _cleanup = Cleanup;
        let file = common::config_dir().with_extension("batch");
        let place = file.display();
        let write = |text: &str| std::fs::write(&file, text).expect("a file");
        write("# links\nlink add rxe0 \\\n  type rxe netdev lo\nlink show rxe0/1\n");
        let line = "link rxe0/1 state ACTIVE physical_state LINK_UP netdev lo \n";
        assert_eq!(ok(&format!("rdma -batch {place}")), line);
        for option in ["-b", "--batch"] {
            write("link\n\nlink\n");
            assert_eq!(ok(&format!("rdma {option} {place}")), line.repeat(2));
        }
        write("link show rxe7\nlink delete rxe0\n");
        let said = fails(&format!("rdma -b {place}"));
        assert!(said.contains("link rxe7 does not exist"), "{said}");
        assert!(
            said.contains(&format!("Command failed {place}:1")),
            "{said}"
        );
        assert_eq!(ok("rdma link"), line, "the rest is not executed");
        let said = fails(&format!("rdma -force -batch {place}"));
        assert!(said.contains("1 command failed"), "{said}");
        assert_eq!(ok("rdma link"), "", "the rest is executed");
        let said = fails("rdma -batch /no/such/file");
        assert!(said.contains("/no/such/file"), "{said}");
        for option in ["-V", "-Version", "--version"] {
            let said = ok(&format!("rdma {option}"));
            assert!(said.starts_with("rdma utility, ferroce-"), "{said}");
        }
    });
}

#[test]
fn errors_exit_with_status_1_and_name_the_mistake() {
    isolated("errors_exit_with_status_1_and_name_the_mistake", || {
        let _cleanup = Cleanup;
        ok("rdma link add rxe0 type rxe netdev lo");
        assert!(ok("rdma link add x").starts_with("Usage: rdma link show"));
        assert_eq!(ok("rdma system set privileged-qkey on"), "");
        assert_eq!(ok("rdma statistic mode supported link rxe0/1"), "");
        for (line, complaint) in [
            ("frobnicate", "Unknown object 'frobnicate'"),
            ("link frobnicate", "Unknown link command 'frobnicate'"),
            (
                "link show rxe7",
                "Wrong device name: link rxe7 does not exist; existing links: rxe0",
            ),
            ("link show rxe0/2", "no port `2`"),
            ("dev show rxe7", "Wrong device name"),
            ("resource show rxe7", "Wrong device name"),
            ("resource show qp link rxe7", "Wrong device name"),
            ("resource show qp speed 7", "Unknown filter 'speed'"),
            ("statistic show link rxe7", "link rxe7 does not exist"),
            (
                "link add irdma0 type irdma netdev lo",
                "type `irdma` is not known; use type rxe (RoCE) or siw (iWARP)",
            ),
            (
                "link add rxe1 type rxe netdev eth7",
                "netdev eth7 does not exist; existing netdevs: lo",
            ),
            ("link add rxe1 type rxe netdev lo", "File exists"),
            (
                "link delete rxe7",
                "No such device: link rxe7 does not exist; existing links: rxe0",
            ),
            ("system set netns shared", "Operation not supported"),
            (
                "system set netns blue",
                "netns 'blue': valid options are: { shared | exclusive }",
            ),
            (
                "resource show frob",
                "link frob does not exist; existing links: rxe0; objects are qp, cm_id, cq, mr,",
            ),
            (
                "statistic frob",
                "Unknown statistic command 'frob'. Known: show",
            ),
            (
                "link add rxe1 type frob netdev lo",
                "type `frob` is not known; use type rxe",
            ),
            (
                "link add rxe1 type rxe netdev lo mtu big",
                "mtu `big` is not one of 256, 512, 1024, 2048, 4096",
            ),
            (
                "dev set rxe7 name mine",
                "link rxe7 does not exist; existing links: rxe0",
            ),
            ("dev set rxe0 name a/b", "link name `a/b` is not valid"),
            ("dev set rxe0 name", "the value of 'name' is missing"),
            ("dev set rxe0 netns blue", "Operation not supported"),
            ("dev set rxe0 colour red", "Unknown parameter 'colour'"),
            ("monitor everything", "Unknown parameter 'everything'"),
            (
                "link add rxe1 type rxe netdev",
                "the value of `netdev` is missing; usage: rdma link add NAME",
            ),
            ("link add", "Usage: rdma link show"),
            (
                "system set privileged-qkey off",
                "Operation not supported: privileged-qkey is always on",
            ),
            (
                "system set privileged-qkey maybe",
                "privileged-qkey 'maybe': valid options are: { on | off }",
            ),
            (
                "statistic set link rxe0/1 optional-counters cc_rx_ce_pkts",
                "Operation not supported: rxe0/1 has no optional counters",
            ),
            (
                "statistic unset link rxe0/1 optional-counters",
                "Operation not supported",
            ),
            ("statistic unset link rxe7/1 optional-counters", "rxe7"),
            ("statistic set", "needs `link DEV/PORT_INDEX`"),
            ("statistic qp show speed 7", "Unknown filter 'speed'"),
            ("statistic mr show speed 7", "Unknown filter 'speed'"),
            ("--frobnicate", "--frobnicate"),
        ] {
            let said = fails(&format!("rdma {line}"));
            assert!(said.contains(complaint), "rdma {line}: {said}");
        }
    });
}

/// All names of the executable report the argument. `rdma` and others used to panic.
#[test]
fn argument_that_is_not_utf8_is_an_error() {
    let argument = OsStr::from_bytes(b"rxe\xff");
    for (line, status) in [
        ("rdma link show", 1),
        ("rxe_init.sh", 1),
        ("rxe_cfg status", 1),
        ("ferroce link show", 2),
    ] {
        let output = common::command(line)
            .arg(argument)
            .output()
            .expect("ferroce starts");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(status), "{line}: {said}");
        assert!(
            said.contains(r#"("rxe\xFF") is not UTF-8 text"#),
            "{line}: {said}"
        );
    }
    let unknown = common::command("ferroce").arg(argument).output();
    let unknown = String::from_utf8(unknown.expect("ferroce starts").stderr).expect("text");
    assert!(
        unknown.contains("known are capture, config, demo"),
        "{unknown}"
    );
}

/// This process is the program whose objects are shown.
#[test]
fn resources_of_programs_are_shown() {
    isolated("resources_of_programs_are_shown", || {
        let _cleanup = Cleanup;
        ok("rdma link add rxe0 type rxe netdev lo");
        let mut left = Endpoint::open("rxe0", Options::new(QpType::Rc, 1)).expect("a device");
        let mut right = Endpoint::open("rxe0", Options::new(QpType::Rc, 1)).expect("a device");
        let introduced = right.introduction().expect("known");
        left.connect(&introduced).expect("connected");
        let introduced = left.introduction().expect("known");
        right.connect(&introduced).expect("connected");

        let summary = ok("rdma resource");
        assert!(
            summary.starts_with("0: rxe0: pd 2 cq ") && summary.contains(" qp 2 cm_id 0 mr "),
            "{summary}"
        );
        assert!(summary.ends_with(" ctx 2 srq 0 \n"), "{summary}");
        assert_eq!(ok("rdma res show rxe0"), summary);

        let pid = std::process::id();
        let comm = std::fs::read_to_string("/proc/self/comm").expect("a name");
        let owner = format!("pid {pid} comm {} ", comm.trim_end());
        let lines = ok("rdma res show qp link rxe0/1");
        assert_eq!(lines.lines().count(), 2, "{lines}");
        for line in lines.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let expected = [
                (0, "link"),
                (1, "rxe0/1"),
                (2, "lqpn"),
                (4, "pdn"),
                (6, "rqpn"),
                (8, "type"),
                (9, "RC"),
                (10, "state"),
                (11, "RTS"),
                (12, "rq-psn"),
                (14, "sq-psn"),
                (16, "path-mig-state"),
                (17, "MIGRATED"),
            ];
            for (place, word) in expected {
                assert_eq!(words[place], word, "{line}");
            }
            let wire = line.strip_suffix("wire local ");
            let wire = wire.or_else(|| line.strip_suffix("wire udp "));
            let before = wire.unwrap_or_else(|| panic!("no wire: {line}"));
            assert!(before.ends_with(&owner), "{line}");
            let one = ok(&format!("rdma res show qp lqpn {}", words[3]));
            assert_eq!(one, format!("{line}\n"));
        }
        assert_eq!(ok("rdma res show qp state ERR"), "");
        assert_eq!(ok(&format!("rdma res show qp pid {pid}")), lines);
        assert_eq!(ok("rdma res show qp link rxe0/-"), "");
        let json: serde_json::Value =
            serde_json::from_str(&ok("rdma -j res show qp")).expect("JSON");
        assert_eq!(json[0]["ifname"], "rxe0");
        assert_eq!(json[0]["pid"], pid);
        assert!(json[0]["sq-psn"].is_u64(), "{json}");
        for (kind, beginning) in [
            ("cq", "dev rxe0 cqn "),
            ("mr", "dev rxe0 mrn "),
            ("pd", "dev rxe0 pdn "),
            ("ctx", "dev rxe0 ctxn "),
        ] {
            let lines = ok(&format!("rdma res show {kind}"));
            assert!(lines.lines().count() >= 2, "{kind}: {lines}");
            for line in lines.lines() {
                assert!(
                    line.starts_with(beginning) && line.ends_with(&owner),
                    "{line}"
                );
            }
        }
        assert!(
            ok("rdma res show mr").contains(" rkey 0x"),
            "the user of ferroced sees keys"
        );
        let counters = ok("rdma statistic qp show link rxe0/1");
        // The devices of a program share its counters.
        assert_eq!(counters.matches("\n    LQPN: <").count(), 1, "{counters}");
        assert!(
            counters.contains(&format!(" pid {pid} comm ")),
            "{counters}"
        );

        assert_eq!(ok(&format!("rdma statistic qp show pid {pid}")), counters);
        assert_eq!(ok("rdma statistic qp link rxe0/1 qp-type RC"), counters);
        assert_eq!(ok("rdma statistic qp show qp-type UD"), "");
        assert_eq!(ok("rdma statistic qp show pid 1"), "");
        let number = lines.split(' ').nth(3).expect("a number");
        let one = ok(&format!("rdma statistic qp show lqpn {number}"));
        assert_eq!(one.matches("LQPN: <").count(), 1, "{one}");
        assert!(counters.contains(&one), "{one}");

        let regions = ok("rdma statistic mr");
        let mrs = ok("rdma res show mr");
        assert_eq!(regions.lines().count(), mrs.lines().count());
        assert_eq!(ok("rdma statistic show mr dev rxe0"), regions);
        let number = mrs.split(' ').nth(3).expect("a number");
        let line = format!("dev rxe0 mrn {number} \n");
        let one = ok(&format!("rdma statistic mr show mrn {number}"));
        assert!(one.starts_with(&line), "{one}");
        for line in [
            "resource",
            "resource show",
            "resource show qp",
            "resource show mr",
        ] {
            assert_eq!(ok(&format!("ferroce {line}")), ok(&format!("rdma {line}")));
        }

        drop(left);
        let lines = ok("rdma res show qp");
        assert_eq!(lines.lines().count(), 1, "{lines}");
        drop(right);
        assert_eq!(ok("rdma res show qp"), "");
    });
}

/// The test binds and listens with the requests that librdmacm sends.
#[test]
fn listening_port_is_shown_as_cm_id() {
    isolated("listening_port_is_shown_as_cm_id", || {
        let _cleanup = Cleanup;
        ok("rdma link add rxe0 type rxe netdev lo");
        let mut line = find_daemon().expect("reachable").expect("running");
        let mut ask = |call| match line.request(&Request::Cm(call)).expect("answered").0 {
            Reply::CmAnswer(answer) => answer,
            other => panic!("{other:?}"),
        };
        let bound = ask(CmCall::Bind {
            space: PortSpace::Tcp,
            source: Host::new("127.0.0.1".parse().expect("an address")),
            port: 7174,
            destination: None,
            reuse: false,
            af_only: true,
        });
        let CmAnswer::Bound { port, .. } = bound else {
            panic!("{bound:?}");
        };
        assert_eq!(
            ok("rdma res show cm_id"),
            "",
            "bound, and not yet listening"
        );
        let backlog = 8;
        assert_eq!(ask(CmCall::Listen { port, backlog }), CmAnswer::Done);
        let shown = ok("rdma res show cm_id link rxe0/1");
        let pid = std::process::id();
        let expected = format!(" state LISTEN ps TCP pid {pid} comm ");
        assert!(shown.starts_with("link rxe0/1 cm-idn "), "{shown}");
        assert!(shown.contains(&expected), "{shown}");
        assert!(
            shown.ends_with(" src-addr 127.0.0.1:7174 dst-addr 0.0.0.0:0 \n"),
            "{shown}"
        );
        assert!(ok("rdma res").contains(" cm_id 1 "));
        assert_eq!(ok("rdma res show cm_id src-port 7174"), shown);
        assert_eq!(ok("rdma res show cm_id src-port 7175"), "");
        assert_eq!(ok("rdma res show cm_id src-addr 127.0.0.1"), shown);
        drop(line);
        deadline::until("the cm_id ends with its owner", || {
            ok("rdma res show cm_id").is_empty()
        });
    });
}

/// A program that uses the link keeps its queue pairs.
#[test]
fn renamed_device_keeps_its_programs_across_a_restart() {
    isolated("renamed_device_keeps_its_programs_across_a_restart", || {
        let _cleanup = Cleanup;
        netdev::add_veth("eth0", "far0");
        netdev::add_address("eth0", "10.0.0.1/24");
        ok("rdma link add rxe0 type rxe netdev lo");
        ok("rdma link add rxe1 type rxe netdev eth0");
        let user = Endpoint::open("rxe0", Options::new(QpType::Rc, 1)).expect("a device");
        assert_eq!(ok("rdma dev set rxe0 name storage"), "");
        assert!(ok("rdma link").starts_with("link storage/1 state ACTIVE "));
        assert!(ok("rdma dev").starts_with("0: storage: node_type ca "));
        assert!(ok("rdma res show qp").starts_with("link storage/1 lqpn "));
        let said = fails("rdma dev set storage name rxe1");
        assert!(
            said.contains("File exists: link rxe1 exists already"),
            "{said}"
        );
        assert_eq!(ok("rdma dev set storage name storage"), "", "no change");
        // The next ferroced knows the new name, and the program attaches to it.
        common::end_daemon();
        assert!(ok("rdma link").starts_with("link storage/1 "));
        deadline::until("the program is attached again", || {
            ok("rdma res show qp").starts_with("link storage/1 lqpn ")
        });
        drop(user);
        ok("ferroce link set storage name rxe0");
        assert!(ok("rdma link").starts_with("link rxe0/1 "));
    });
}

#[test]
fn monitor_reports_links_across_a_restart() {
    isolated("monitor_reports_links_across_a_restart", || {
        let _cleanup = Cleanup;
        let place = common::config_dir().with_extension("monitor");
        let file = std::fs::File::create(&place).expect("a file");
        let told = || std::fs::read_to_string(&place).expect("text");
        let mut monitor = common::command("rdma monitor")
            .stdout(file)
            .spawn()
            .expect("ferroce starts");
        // The monitor prints no line when it is ready, so add links until it reports one.
        deadline::until("the monitor listens", || {
            ok("rdma link add rxe0 type rxe netdev lo");
            ok("rdma link delete rxe0");
            told().contains("[REGISTER]\tdev ")
        });
        ok("rdma link add mine type rxe netdev lo");
        ok("rdma dev set mine name yours");
        common::end_daemon();
        ok("rdma link delete yours");
        deadline::until("all events are reported", || {
            told().contains("[UNREGISTER]\tdev ") && told().contains(" yours\n[UN")
        });
        let text = told();
        let about: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("mine") || line.contains("yours"))
            .collect();
        let index = about[0].split(' ').nth(1).expect("a number");
        assert_eq!(
            about,
            [
                format!("[REGISTER]\tdev {index} mine"),
                format!("[NETDEV_ATTACH]\tdev {index} mine port 1 netdev 1 lo"),
                format!("[RENAME]\tdev {index} yours"),
                format!("[UNREGISTER]\tdev {index} yours"),
            ]
        );
        monitor.kill().expect("ours");
        monitor.wait().expect("ours");
        std::fs::remove_file(&place).expect("ours");
    });
}
