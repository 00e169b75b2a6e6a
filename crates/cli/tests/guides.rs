//! The commands of guides for Soft-RoCE, as printed.
//!
//! Each command runs under `ferroce run`, and its output must have the parts that the guide
//! prints. With `FERROCE_WRITE_GUIDES=docs/GUIDES.md` (a path from the root of the
//! repository) the test writes the transcript to that file.

mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ferroce_control::find_daemon;
use ferroce_testnet::{deadline, netdev};

use common::{Cleanup, FERROCE, PINGPONG_PORT, config_dir, is_listening, with_libraries};

const WRITE: &str = "FERROCE_WRITE_GUIDES";

/// A guide.
struct Guide {
    title: &'static str,
    /// Differences between the guide and Ferroce.
    remark: &'static str,
    /// Netdevs of the guide and their addresses.
    netdevs: &'static [(&'static str, &'static str)],
    steps: &'static [Step],
}

/// A command of a guide.
struct Step {
    typed: &'static str,
    /// Parts of the output, in order. Empty: the command prints nothing.
    shows: &'static [&'static str],
    /// True if the command exits with status 0.
    works: bool,
}

const fn quiet(typed: &'static str) -> Step {
    shown(typed, &[])
}

const fn shown(typed: &'static str, shows: &'static [&'static str]) -> Step {
    Step {
        typed,
        shows,
        works: true,
    }
}

const fn refused(typed: &'static str, shows: &'static [&'static str]) -> Step {
    Step {
        typed,
        shows,
        works: false,
    }
}

const PINGPONG: &[&str] = &[
    "local address:",
    "remote address:",
    "GID ::ffff:10.5.0.1",
    "Mbit/sec",
    "usec/iter",
];

const GUIDES: &[Guide] = &[
    Guide {
        title: "LGProxy: Software RDMA Configuration",
        remark: "iWARP (`type siw`) and RoCE (`type rxe`) work side by side on one netdev.",
        netdevs: &[("enp4s0f0", "10.1.0.1/24")],
        steps: &[
            shown("ip link", &["enp4s0f0"]),
            shown("ip addr show enp4s0f0", &["inet 10.1.0.1/24"]),
            quiet("sudo rdma link add rxe0 type rxe netdev enp4s0f0"),
            shown(
                "rdma link",
                &["link rxe0/1 state ACTIVE physical_state LINK_UP netdev enp4s0f0"],
            ),
            quiet("sudo rdma link add siw0 type siw netdev enp4s0f0"),
            shown(
                "rdma link",
                &["link siw0/1 state ACTIVE physical_state LINK_UP netdev enp4s0f0"],
            ),
            quiet("sudo rdma link delete siw0"),
            quiet("sudo rdma link delete rxe0"),
        ],
    },
    Guide {
        title: "A university cloud: Soft-RoCE on Ubuntu 22.04",
        remark: "The guide first compiles a kernel. Skip that part.",
        netdevs: &[("ens3", "10.2.0.1/24")],
        steps: &[
            quiet("sudo rdma link add rxe_ens3 type rxe netdev ens3"),
            shown(
                "rdma link",
                &["link rxe_ens3/1 state ACTIVE physical_state LINK_UP netdev ens3"],
            ),
            shown(
                "ibv_devices",
                &["device", "node GUID", "rxe_ens3", "505400fffed5e000"],
            ),
            quiet("sudo rdma link delete rxe_ens3"),
        ],
    },
    Guide {
        title: "Red Hat: Configuring InfiniBand and RDMA networks",
        remark: "Skip `modprobe` and `ulimit -l`: Ferroce needs no module and pins no memory. `ibping`, \
                 IPoIB and subnet managers do not exist on RoCE (see above). NFS over RDMA uses the \
                 kernel's own RDMA and does not see Ferroce. Skip the steps that set the RoCE mode: \
                 it is always v2.",
        netdevs: &[("enp1s0", "10.3.0.1/24")],
        steps: &[
            quiet("rdma link add rxe0 type rxe netdev enp1s0"),
            shown(
                "rdma link show",
                &["link rxe0/1 state ACTIVE physical_state LINK_UP netdev enp1s0"],
            ),
            shown(
                "ibv_devices",
                &["device", "node GUID", "rxe0", "505400fffed5e000"],
            ),
            shown(
                "ibv_devinfo -d rxe0",
                &[
                    "hca_id:\trxe0",
                    "transport:",
                    "InfiniBand (0)",
                    "fw_ver:",
                    "node_guid:",
                    "5054:00ff:fed5:e000",
                    "sys_image_guid:",
                    "phys_port_cnt:",
                    "state:",
                    "PORT_ACTIVE (4)",
                    "max_mtu:",
                    "4096 (5)",
                    "active_mtu:",
                    "1024 (3)",
                    "sm_lid:",
                    "port_lid:",
                    "port_lmc:",
                    "link_layer:",
                    "Ethernet",
                ],
            ),
            shown(
                "ibstat rxe0",
                &[
                    "CA 'rxe0'",
                    "Number of ports: 1",
                    "Port 1:",
                    "State: Active",
                    "Physical state: LinkUp",
                    "Rate:",
                    "Link layer: Ethernet",
                ],
            ),
            shown(
                "cat /sys/class/infiniband/rxe0/ports/1/gid_attrs/types/1",
                &["RoCE v2"],
            ),
            shown(
                "cat /sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_mode",
                &["RoCE v2"],
            ),
            refused("ibping -S -C rxe0 -P 1", &["can't open UMAD port (rxe0:1)"]),
            shown(
                "ferroce ping -c 2 10.3.0.1",
                &["answer from 10.3.0.1: seq=1 time=", "2 answered, 0% lost"],
            ),
            quiet("rdma link add siw0 type siw netdev enp1s0"),
            shown(
                "rdma link show",
                &["link siw0/1 state ACTIVE physical_state LINK_UP netdev enp1s0"],
            ),
            shown("ibv_devices", &["siw0", "505400fffed5e000"]),
            shown(
                "ibv_devinfo siw0",
                &[
                    "hca_id:\tsiw0",
                    "transport:\t\t\tiWARP (1)",
                    "vendor_id:\t\t\t0x626d74",
                    "vendor_part_id:\t\t\t1\n",
                    "max_mtu:\t\t1024 (3)",
                ],
            ),
            quiet("rdma link delete siw0"),
            quiet("rdma link delete rxe0"),
        ],
    },
    Guide {
        title: "NVIDIA: How to configure Soft-RoCE",
        remark: "The guide first installs a kernel and libraries. Skip that part. With the kernel's \
                 Soft-RoCE, users report that `-g 0`, the link-local address, hangs. With Ferroce \
                 it works.",
        netdevs: &[("eth1", "10.6.0.1/24")],
        steps: &[
            shown("rxe_cfg start", &["Name", "RDEV", "eth1"]),
            quiet("rxe_cfg add eth1"),
            shown("rxe_cfg", &["eth1", "10.6.0.1", "rxe0  1024  (3)"]),
            shown("ls /sys/class/infiniband", &["rxe0\n"]),
            shown("ibv_devices", &["device", "node GUID", "rxe0"]),
            shown(
                "ibv_devinfo rxe0",
                &["hca_id:\trxe0", "PORT_ACTIVE (4)", "1024 (3)", "Ethernet"],
            ),
            quiet("ibv_rc_pingpong -d rxe0 -g 0 &"),
            shown(
                "ibv_rc_pingpong -d rxe0 -g 0 10.6.0.1",
                &[
                    "local address:",
                    "GID fe80::",
                    "remote address:",
                    "Mbit/sec",
                ],
            ),
            shown("wait", &["local address:", "GID fe80::", "usec/iter"]),
            quiet("rping -s -a 10.6.0.1 -v -C 3 &"),
            shown(
                "rping -c -a 10.6.0.1 -v -C 3",
                &["ping data: rdma-ping-0:", "ping data: rdma-ping-2:"],
            ),
            shown("wait", &["server ping data: rdma-ping-0:"]),
            quiet("rxe_cfg remove eth1"),
        ],
    },
    Guide {
        title: "HPE Slingshot: Configure Soft-RoCE",
        remark: "Skip the settings in `/sys/module/rdma_rxe/parameters`: they belong to the \
                 kernel's module. To recreate the links at every boot, run `ferroce config save` \
                 and `systemctl enable ferroced`.",
        netdevs: &[("hsn0", "10.4.0.1/24"), ("hsn1", "10.4.1.1/24")],
        steps: &[
            quiet("rxe_init.sh"),
            quiet("rxe_init.sh hsn0 hsn1"),
            shown(
                "rdma link",
                &[
                    "link rxe0/1 state ACTIVE physical_state LINK_UP netdev hsn0",
                    "link rxe1/1 state ACTIVE physical_state LINK_UP netdev hsn1",
                ],
            ),
            quiet("rdma link delete rxe0"),
            quiet("rdma link delete rxe1"),
        ],
    },
    Guide {
        title: "OpenFabrics Workshop 2017: SoftRoCE",
        remark: "`-p` of `rxe_cfg start` set the Ethernet type of RoCEv1. Ferroce ignores it.",
        netdevs: &[("enp17s0", "10.5.0.1/24"), ("eno2", "10.5.1.1/24")],
        steps: &[
            shown(
                "rxe_cfg",
                &[
                    "Name     Link  Driver  Speed   NMTU  IPv4_addr  RDEV  RMTU",
                    "enp17s0  yes",
                ],
            ),
            shown("rxe_cfg start", &["Name"]),
            quiet("rxe_cfg add enp17s0"),
            shown("rxe_cfg status", &["enp17s0  yes", "rxe0  1024  (3)"]),
            shown("rxe_cfg persistent", &["enp17s0"]),
            quiet("rxe_cfg crc enable"),
            quiet("rxe_cfg mtu rxe0 1024"),
            shown(
                "ibv_devinfo -v -d rxe0",
                &[
                    "InfiniBand (0)",
                    "PORT_ACTIVE (4)",
                    "4096 (5)",
                    "1024 (3)",
                    "LINK_UP (5)",
                    "GID[  0]:\t\tfe80:",
                    "GID[  1]:\t\t::ffff:10.5.0.1",
                ],
            ),
            quiet("ibv_rc_pingpong -d rxe0 -g 1 -n 1 -s 512 &"),
            shown(
                "ibv_rc_pingpong -d rxe0 -g 1 -n 1 -s 512 10.5.0.1",
                PINGPONG,
            ),
            shown("wait", PINGPONG),
            shown(
                "rdma resource show",
                &["0: rxe0: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0"],
            ),
            shown(
                "rdma statistic show link rxe0/1",
                &["link rxe0/1 sent_pkts "],
            ),
            quiet("rxe_cfg remove enp17s0"),
            quiet("rxe_cfg stop"),
            shown("rxe_cfg help", &["crc enable|disable"]),
        ],
    },
];

/// A shell that types commands.
#[derive(Default)]
struct Shell {
    /// The command that was started with `&`, until `wait`.
    background: Option<Child>,
}

impl Shell {
    /// Runs a command under `ferroce run`. Returns true if it succeeded, and its output.
    fn type_in(&mut self, line: &str) -> (bool, String) {
        if line == "wait" {
            let (works, text) = said(self.background.take().expect("something to wait for"));
            // rping's server reports the end of its client as an error.
            return (works || text.contains("DISCONNECT EVENT"), text);
        }
        let Some(server) = line.strip_suffix(" &") else {
            return said(start(line));
        };
        self.background = Some(start(server));
        deadline::until("the server listens", || {
            is_listening(PINGPONG_PORT)
                || !common::ok("rdma resource show cm_id state LISTEN").is_empty()
        });
        (true, String::new())
    }
}

fn start(line: &str) -> Child {
    Command::new(FERROCE)
        .args(["run", "--no-link", "--", "sh", "-c"])
        .arg(format!("exec 2>&1; {line}"))
        .env("FERROCE_CONFIG_DIR", config_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("ferroce starts")
}

fn said(child: Child) -> (bool, String) {
    let output = child.wait_with_output().expect("our child");
    let text = String::from_utf8(output.stdout).expect("text");
    (output.status.success(), text)
}

/// Returns the first part that the text lacks, in order.
fn missing<'a>(text: &str, parts: &[&'a str]) -> Option<&'a str> {
    let mut rest = text;
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return Some(part),
        }
    }
    None
}

fn play(guide: &Guide) -> String {
    for (n, (name, address)) in guide.netdevs.iter().enumerate() {
        let far = format!("far{n}");
        netdev::add_veth(name, &far);
        netdev::set_mac(name, [0x52, 0x54, 0x00, 0xd5, 0xe0, n as u8]);
        netdev::add_address(name, address);
        netdev::set_up(name);
        netdev::set_up(&far);
        netdev::await_link_local(name);
    }
    let mut transcript = format!("## {}\n\n{}\n\n```text\n", guide.title, guide.remark);
    let mut shell = Shell::default();
    for step in guide.steps {
        let program = step.typed.split(' ').next().unwrap_or_default();
        let ours = ["rdma", "rxe_cfg", "rxe_init.sh", "sudo", "ferroce", "wait"];
        if !ours.contains(&program) && !exists(program) {
            eprintln!(
                "*** SKIPPED: {}: {program} is not installed ***",
                step.typed
            );
            continue;
        }
        if program == "wait" && shell.background.is_none() {
            continue; // the server was skipped
        }
        let (works, said) = shell.type_in(step.typed);
        assert_eq!(works, step.works, "{}: {said}", step.typed);
        if step.shows.is_empty() {
            assert_eq!(said, "", "{}", step.typed);
        }
        let missing = missing(&said, step.shows);
        assert_eq!(missing, None, "{}:\n{said}", step.typed);
        let lines = said.lines().map(|line| format!("{}\n", line.trim_end()));
        let _ = write!(
            transcript,
            "$ {}\n{}",
            step.typed,
            lines.collect::<String>()
        );
    }
    for (name, _) in guide.netdevs {
        netdev::delete(name);
    }
    transcript + "```\n\n"
}

fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    dirs.any(|dir| dir.join(program).exists())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_guide_works_as_printed() {
    with_libraries("every_guide_works_as_printed", || {
        let _cleanup = Cleanup;
        let mut text = String::from(BEGINNING);
        for guide in GUIDES {
            text += &play(guide);
            deadline::until("ferroced has ended", || {
                find_daemon().is_ok_and(|daemon| daemon.is_none())
            });
        }
        if let Some(file) = std::env::var_os(WRITE) {
            fs::write(repository().join(file), text.trim_end().to_owned() + "\n").expect("written");
        }
    });
}

const BEGINNING: &str = "\
# Soft-RoCE guides with Ferroce

To follow a guide for Soft-RoCE, start `ferroce shell` and type its commands. They work as printed; `sudo` may stay.
Skip the steps about kernels and modules (`modprobe rdma_rxe`, `modprobe siw`, `modinfo rdma_rxe`).

Below are the commands of six guides, in order, with the output of Ferroce. A test runs each command
(`crates/cli/tests/guides.rs`) and writes this file:
`FERROCE_WRITE_GUIDES=docs/GUIDES.md cargo test -p ferroce-cli --test guides`.

`sudo` inside `ferroce shell` runs RDMA commands as the present user and hands all other commands to the real sudo.

## Not on RoCE

RoCE is InfiniBand's transport on Ethernet, without InfiniBand's fabric. The following does not exist on RoCE with any
driver; the kernel's `rdma_rxe` and RoCE NICs refuse it, too.

| guides name | on RoCE | use instead |
| --- | --- | --- |
| `ibping`, and tools that find ports by their LID: `ibtracert`, `smpquery`, `saquery`, `perfquery`, `ibnetdiscover`, `iblinkinfo` | Ports have no LID and exchange no subnet management packets. With the kernel's driver `ibping` fails with \"only lid routes are supported\". | `ferroce ping HOST` tests the peer's connection manager; `ibstat`, `ibstatus` and `ibv_devinfo` show ports; `ferroce stat` shows counters |
| IPoIB: an interface `ib0`, datagram and connected mode | `modprobe ib_ipoib` creates no interface. | the IP address of the link's netdev |
| a subnet manager: `opensm`, partitions, `sminfo` | Ethernet has none. A port is active as soon as its netdev is up. | nothing; `rdma_cm` finds peers and paths by IP address |

";

/// docs/GUIDES.md has the commands of this test.
#[test]
fn document_has_every_command() {
    if std::env::var_os(WRITE).is_some() {
        return; // the other test writes the file
    }
    let page = fs::read_to_string(repository().join("docs/GUIDES.md")).expect("docs/GUIDES.md");
    assert!(
        page.starts_with(BEGINNING),
        "docs/GUIDES.md has another start; write it anew"
    );
    for absent in ["ibping", "IPoIB", "subnet manager"] {
        assert!(
            BEGINNING.contains(absent),
            "BEGINNING does not mention {absent}"
        );
    }
    for guide in GUIDES {
        assert!(page.contains(guide.title), "{}", guide.title);
        assert!(page.contains(guide.remark), "{}", guide.remark);
        for step in guide.steps {
            let line = format!("\n$ {}\n", step.typed);
            assert!(page.contains(&line), "docs/GUIDES.md lacks: {}", step.typed);
        }
    }
}
