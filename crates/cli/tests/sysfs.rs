//! `/sys/class/infiniband` and `/dev/infiniband` as unmodified programs see them under
//! `ferroce run`.

mod common;

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use ferroce_control::{PAGE_HEADER, attach, find_daemon};
use ferroce_device::transport::Counter;
use ferroce_testnet::{deadline, netdev};

use common::{Cleanup, FERROCE, ok, with_libraries};

/// Runs a shell command under `ferroce run`. Returns its output with its errors.
fn said(line: &str) -> String {
    let output = Command::new(FERROCE)
        .args(["run", "--", "sh", "-c", &format!("exec 2>&1; {line}")])
        .stdin(Stdio::null())
        .output()
        .expect("ferroce starts");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn tools_find_the_device() {
    with_libraries("tools_find_the_device", || {
        let _cleanup = Cleanup;
        // One link for all commands: a link per command would have a new index each time.
        ok("ferroce link add rxe0 type rxe netdev lo");
        assert_eq!(said("ls /sys/class/infiniband"), "rxe0\n");
        assert_eq!(said("ls /dev/infiniband"), "rdma_cm\nuverbs0\n");
        let files = "fw_ver node_desc node_guid node_type parent ports power subsystem \
                     sys_image_guid uevent\n";
        assert_eq!(said("echo $(ls /sys/class/infiniband/rxe0)"), files);
        let port = "/sys/class/infiniband/rxe0/ports/1";
        assert_eq!(said(&format!("cat {port}/gid_attrs/types/1")), "RoCE v2\n");
        assert_eq!(said(&format!("cat {port}/gid_attrs/ndevs/1")), "lo\n");
        assert_eq!(said(&format!("cat {port}/state")), "4: ACTIVE\n");
        assert_eq!(
            said(&format!("echo {port}/gids/*")),
            format!("{port}/gids/0 {port}/gids/1\n")
        );
        for device in ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"] {
            let test =
                format!("test -c {device} && test -r {device} && test -w {device} && echo yes");
            assert_eq!(said(&test), "yes\n", "{device}");
        }
        let long = said("ls -l /sys/class/infiniband");
        assert!(!long.contains("No such file"), "{long}");
        let link = "rxe0 -> ../../devices/virtual/infiniband/rxe0\n";
        assert!(long.ends_with(link), "{long}");
        let missing = said("cat /sys/class/infiniband/rxe7/state");
        assert!(missing.contains("No such file or directory"), "{missing}");
    });
}

/// NCCL and UCX choose devices and algorithms by the speed.
#[test]
fn speed_of_a_link_is_the_one_that_programs_see() {
    with_libraries("speed_of_a_link_is_the_one_that_programs_see", || {
        let _cleanup = Cleanup;
        let rate = "cat /sys/class/infiniband/rxe0/ports/1/rate";
        let verbs = "ibv_devinfo -v | grep -E 'active_(speed|width)' | tr -s '[:space:]' ' '";
        for (words, shown, rate_is, verbs_are) in [
            (
                "",
                "speed 25000",
                "25 Gb/sec (1X EDR)\n",
                " active_width: 1X (1) active_speed: 25.0 Gbps (32) ",
            ),
            (
                " speed 100g",
                "speed 100000",
                "100 Gb/sec (4X EDR)\n",
                " active_width: 4X (2) active_speed: 25.0 Gbps (32) ",
            ),
        ] {
            ok(&format!("ferroce link add rxe0 type rxe netdev lo{words}"));
            let details = ok("ferroce -d link show rxe0");
            assert!(details.contains(&format!(" {shown} ")), "{details}");
            let details = ok("rdma -d link show rxe0");
            assert!(details.contains(&format!(" {shown} ")), "{details}");
            assert_eq!(said(rate), rate_is);
            assert_eq!(said(verbs), verbs_are);
            deadline::until("the link is unused", || {
                common::run("ferroce link delete rxe0").status.success()
            });
        }
        ok("ferroce link add rxe0 type rxe netdev lo speed 40g");
        ok("ferroce config save");
        let configured = ok("ferroce config show");
        assert!(
            configured.contains("netdev lo speed 40000m"),
            "{configured}"
        );
        assert_eq!(said(rate), "40 Gb/sec (4X FDR10)\n");
        ok("ferroce link set rxe0 speed 0");
        assert_eq!(said(rate), "25 Gb/sec (1X EDR)\n", "the netdev's");
    });
}

/// A device is a symbolic link, and `..` resolves as with the kernel's driver. Mooncake and
/// NCCL find related devices that way.
#[test]
fn device_resolves_like_a_symbolic_link() {
    with_libraries("device_resolves_like_a_symbolic_link", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let class = "/sys/class/infiniband";
        let device = "/sys/devices/virtual/infiniband/rxe0";
        for (path, place) in [
            (format!("{class}/rxe0"), device),
            (format!("{class}/rxe0/../.."), "/sys/devices/virtual"),
            (format!("{class}/rxe0/subsystem"), class),
            (format!("{class}/.."), "/sys/class"),
            (format!("{device}/../rxe0"), device),
        ] {
            // The command realpath uses readlink; libc's function makes its own system calls.
            assert_eq!(said(&format!("realpath {path}")), format!("{place}\n"));
            if Path::new("/usr/bin/python3").exists() {
                let ask = format!(
                    "python3 -c 'import ctypes; c = ctypes.CDLL(None); \
                     c.realpath.restype = ctypes.c_char_p; \
                     print(c.realpath(b\"{path}\", None).decode())'"
                );
                assert_eq!(said(&ask), format!("{place}\n"));
            }
        }
        for path in ["rxe0/../../net/lo/ifindex", "../net/lo/ifindex"] {
            let neighbour = said(&format!("cat {class}/{path}"));
            assert_eq!(neighbour, "1\n", "{path}: a file of the real sysfs");
        }
        assert_eq!(said("cat /dev/infiniband/../null"), "");
        let missing = said(&format!("ls {class}/rxe0/device {class}/rxe7/.."));
        assert_eq!(missing.matches("No such file").count(), 2, "{missing}");
    });
}

/// A shell may change into the directories, and its commands start there.
#[test]
fn directories_can_be_entered() {
    with_libraries("directories_can_be_entered", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let class = "/sys/class/infiniband";
        let inside = |line: &str| said(&format!("cd {class}/rxe0/ports && {line}"));
        assert_eq!(inside("cat 1/state"), "4: ACTIVE\n");
        assert_eq!(inside("pwd"), format!("{class}/rxe0/ports\n"));
        let device = "/sys/devices/virtual/infiniband/rxe0";
        assert_eq!(inside("/bin/pwd -P"), format!("{device}/ports\n"));
        assert_eq!(inside("cat ../../../net/lo/ifindex"), "1\n");
        assert_eq!(inside("cd ../../.. && pwd"), "/sys/class\n");
        assert_eq!(inside("cd -P ../../.. && pwd"), "/sys/devices/virtual\n");
        assert_eq!(inside("echo *"), "1\n");
        let found = inside("find . -name state");
        assert_eq!(found, "./1/state\n");
        let status = said("ibstatus");
        if status.contains("not found") {
            return eprintln!("*** SKIPPED: no ibstatus ***");
        }
        assert!(
            status.contains("Infiniband device 'rxe0' port 1 status:"),
            "{status}"
        );
        assert!(
            status.contains("4: ACTIVE") && status.contains("Ethernet"),
            "{status}"
        );
    });
}

/// A read returns the present value while programs run.
#[test]
fn counters_are_live() {
    with_libraries("counters_are_live", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let port = "/sys/class/infiniband/rxe0/ports/1";
        let read = |name: &str| -> u64 {
            let text = said(&format!("cat {port}/{name}"));
            text.trim().parse().expect("a number")
        };
        let program = attach("rxe0", 1).expect("attached");
        let page = program.slots[0].counters.as_fd();
        let count = |counter: Counter, value: u64| {
            let at = PAGE_HEADER as u64 + 8 * counter as u64;
            rustix::io::pwrite(page, &value.to_ne_bytes(), at).expect("written");
        };
        for value in [5, 6, 700] {
            count(Counter::SentPkts, value);
            count(Counter::SentBytes, 4 * value);
            assert_eq!(read("hw_counters/sent_pkts"), value);
            assert_eq!(read("counters/port_xmit_packets"), value);
            assert_eq!(read("counters/port_xmit_data"), value);
        }
        // Also if the program lists the directory.
        count(Counter::SentPkts, 701);
        let all = said(&format!("grep -r . {port}/hw_counters"));
        assert!(all.contains("/sent_pkts:701\n"), "{all}");
        // Also by a path relative to the directory.
        let folder = format!("cd {port}/hw_counters");
        count(Counter::SentPkts, 702);
        assert_eq!(said(&format!("{folder} && cat sent_pkts")), "702\n");
    });
}

/// `ibstat` reads sysfs, and `ibv_devinfo` calls verbs: both show the same LID.
#[test]
fn lid_in_sysfs_is_that_of_verbs() {
    with_libraries("lid_in_sysfs_is_that_of_verbs", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        assert_eq!(said("cat /sys/class/infiniband/rxe0/ports/1/lid"), "0x0\n");
        let verbs = said("ibv_devinfo -d rxe0");
        if !verbs.contains("hca_id:") {
            return eprintln!("*** SKIPPED: no ibv_devinfo ***");
        }
        assert!(verbs.contains("port_lid:\t\t0\n"), "{verbs}");
        ok("ferroce link set rxe0 lids on");
        assert_eq!(said("cat /sys/class/infiniband/rxe0/ports/1/lid"), "0x1\n");
        let verbs = said("ibv_devinfo -d rxe0");
        assert!(verbs.contains("port_lid:\t\t1\n"), "{verbs}");
    });
}

#[test]
fn other_paths_are_not_redirected() {
    with_libraries("other_paths_are_not_redirected", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let look = "ls -d /sys/class/* /dev/* /sys/devices/virtual/*; \
                    ls /sys/class/infiniband_mad /dev/infiniband0; cd /sys/class/net && pwd; \
                    realpath lo/.. ../../class";
        let plain = Command::new("sh")
            .args(["-c", &format!("exec 2>&1; {look}")])
            .output()
            .expect("a shell");
        let plain = String::from_utf8(plain.stdout).expect("text");
        assert_eq!(said(look), plain);
    });
}

#[test]
fn python_finds_the_device() {
    with_libraries("python_finds_the_device", || {
        let _cleanup = Cleanup;
        // One link for all commands: a link per command would have a new index each time.
        ok("ferroce link add rxe0 type rxe netdev lo");
        if !Path::new("/usr/bin/python3").exists() {
            return eprintln!("*** SKIPPED: no Python ***");
        }
        let script = "\
import os
top = '/sys/class/infiniband'
print(os.listdir(top), os.path.realpath(top + '/rxe0/ports'))
print(open(top + '/rxe0/node_type').read().strip(), os.path.exists(top + '/rxe1'))
print(os.path.exists('/dev/infiniband/uverbs0'), os.path.exists(top + '/rxe0/device'))
os.chdir(top)
folder = os.open('rxe0/ports/1', os.O_RDONLY)
print(os.getcwd(), os.listdir('.'), os.stat('state', dir_fd=folder).st_size)
print(os.read(os.open('../../node_type', os.O_RDONLY, dir_fd=folder), 9))
os.fchdir(folder)
import ctypes
c = ctypes.CDLL(None, use_errno=True)
c.getcwd.restype = ctypes.c_char_p
print(c.getcwd(None, 0) == c.getcwd(None, 64) == c.getcwd(ctypes.create_string_buffer(64), 64))
print(c.getcwd(None, 9), ctypes.get_errno())
c.get_current_dir_name.restype = ctypes.c_char_p
os.environ['PWD'] = top + '/rxe0/ports/1'
print(c.get_current_dir_name())
os.environ['PWD'] = '/'
print(c.get_current_dir_name())
print(os.getcwd(), open('state').read().strip(), os.path.realpath('..'))
os.chdir('/')
if os.fork() == 0:
    print(sorted(entry.name for entry in os.scandir('/sys/class/infiniband_verbs')), flush=True)
    os._exit(0)
os.wait()
try: open(top + '/none')
except FileNotFoundError as error: print(error.errno)
";
        let seen = said(&format!("python3 -u -c \"{script}\""));
        let expected = "['rxe0'] /sys/devices/virtual/infiniband/rxe0/ports\n\
                        1: CA False\nTrue False\n\
                        /sys/class/infiniband ['rxe0'] 10\nb'1: CA\\n'\n\
                        True\nNone 34\n\
                        b'/sys/class/infiniband/rxe0/ports/1'\n\
                        b'/sys/devices/virtual/infiniband/rxe0/ports/1'\n\
                        /sys/devices/virtual/infiniband/rxe0/ports/1 4: ACTIVE \
                        /sys/devices/virtual/infiniband/rxe0/ports\n\
                        ['abi_version', 'uverbs0']\n2\n";
        assert_eq!(seen, expected);
    });
}

#[test]
fn files_follow_the_link_until_it_is_deleted() {
    with_libraries("files_follow_the_link_until_it_is_deleted", || {
        netdev::add_veth("left", "right");
        netdev::add_address("left", "10.9.0.1/24");
        netdev::set_up("left");
        netdev::set_up("right");
        let ferroce = |line: &str| {
            let status = Command::new(FERROCE).args(line.split(' ')).status();
            assert!(status.expect("ferroce starts").success(), "{line}");
        };
        ferroce("link add mine type rxe netdev left");
        ferroce("link add other type rxe netdev lo");
        let gids = "cat /sys/class/infiniband/mine/ports/1/gids/*; \
                    cat /sys/class/infiniband/mine/ports/1/state";
        assert!(said(gids).contains("ffff:0a09:0001\n"));
        netdev::add_address("left", "10.9.0.2/24");
        deadline::until("the address is seen", || {
            said(gids).contains("ffff:0a09:0002\n")
        });
        netdev::set_down("left");
        deadline::until("the port is down", || said(gids).ends_with("1: DOWN\n"));
        assert_eq!(said("ls /sys/class/infiniband"), "mine\nother\n");
        ferroce("link delete mine");
        assert_eq!(said("ls /sys/class/infiniband"), "other\n");
        assert_eq!(said("ls /dev/infiniband"), "rdma_cm\nuverbs1\n");
        let connection = find_daemon().expect("reachable").expect("running");
        let dir = connection.dir().to_owned();
        drop(connection);
        assert!(dir.join("sysfs").exists());
        ferroce("link delete other");
        deadline::until("the directory is removed", || !dir.exists());
    });
}
