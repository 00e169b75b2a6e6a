//! Configured links: `ferroce config`, `rxe_cfg`, `rxe_init.sh`, and `ferroced --configured`,
//! which adds the links of the configuration.

mod common;

use std::fs;

use ferroce_control::find_daemon;
use ferroce_testnet::{deadline, isolated, netdev};

use common::{Cleanup, cable, config_dir, end_daemon, fails, ok};

/// Kills ferroced and removes its state files, like a reboot.
fn reboot() {
    let dir = find_daemon().ok().flatten().map(|c| c.dir().to_owned());
    end_daemon();
    if let Some(dir) = dir {
        fs::remove_dir_all(dir).expect("ours");
    }
}

#[test]
fn saved_links_are_added_after_a_reboot() {
    isolated("saved_links_are_added_after_a_reboot", || {
        let _cleanup = Cleanup;
        cable("eth0", "far0", "10.0.0.1/24");
        ok("ferroce link add mine type rxe netdev eth0 mtu 512 crc off lids on");
        ok("ferroce link add other type rxe netdev lo");
        ok("ferroce config save mine");
        assert_eq!(
            ok("ferroce config"),
            "link mine type rxe netdev eth0 mtu 512 crc off lids on\n"
        );
        reboot();
        assert_eq!(ok("ferroce link"), "");
        ok("ferroced --configured");
        let line = "link mine/1 state ACTIVE physical_state LINK_UP netdev eth0 \n";
        assert_eq!(ok("ferroce link"), line);
        let details = ok("ferroce -d link");
        assert!(
            details.contains(" mtu 512 ") && details.contains(" lids on "),
            "{details}"
        );
        // A restart without a reboot gives the same.
        end_daemon();
        ok("ferroced --configured");
        assert_eq!(ok("ferroce link"), line);
        reboot();
        ok("ferroce config apply");
        assert_eq!(ok("ferroce link"), line);
        ok("ferroce config forget eth0");
        assert_eq!(ok("ferroce config"), "");
        let said = fails("ferroce config forget eth0");
        assert!(
            said.contains("no link or netdev `eth0` in this file"),
            "{said}"
        );
    });
}

/// The netdev appears after ferroced has started, and its address after that.
#[test]
fn configured_link_is_added_when_its_netdev_has_an_address() {
    isolated(
        "configured_link_is_added_when_its_netdev_has_an_address",
        || {
            let _cleanup = Cleanup;
            fs::create_dir_all(config_dir()).expect("a directory");
            let file = config_dir().join("links.toml");
            fs::write(&file, "[[link]]\nname = \"rxe0\"\nnetdev = \"eth0\"\n").expect("written");
            ok("ferroced --configured");
            assert_eq!(ok("ferroce link"), "");
            netdev::add_veth("eth0", "far0");
            assert_eq!(ok("ferroce link"), "");
            netdev::add_address("eth0", "10.0.0.1/24");
            netdev::set_up("eth0");
            deadline::until("the link is there", || {
                ok("ferroce link").contains("rxe0/1")
            });
            // A link that a user deletes stays deleted.
            ok("ferroce link delete rxe0");
            netdev::add_address("eth0", "10.0.0.2/24");
            assert_eq!(ok("ferroce link"), "");
        },
    );
}

#[test]
fn errors_name_the_line_of_the_configuration() {
    isolated("errors_name_the_line_of_the_configuration", || {
        let _cleanup = Cleanup;
        fs::create_dir_all(config_dir()).expect("a directory");
        let file = config_dir().join("links.toml");
        assert!(ok("ferroce config check").ends_with("links.toml: this file does not exist\n"));
        let said = fails("ferroce config check /nowhere/links.toml");
        assert_eq!(
            said,
            "error: /nowhere/links.toml: this file does not exist\n"
        );
        let said = fails("ferroce config save rxe7");
        assert!(
            said.contains("link rxe7 does not exist; there are no links"),
            "{said}"
        );
        let text = "[[link]]\nname = \"rxe0\"\nnetdev = \"lo\"\nmtu = 1500\n";
        fs::write(&file, text).expect("written");
        let complaint = "links.toml: line 4: mtu 1500 is not one of 256, 512, 1024, 2048, 4096\n";
        for line in [
            "ferroce config check",
            "ferroce config",
            "ferroce config apply",
            "rxe_cfg start",
            "ferroced --configured",
        ] {
            let said = fails(line);
            assert!(said.ends_with(complaint), "{line}: {said}");
        }
        assert!(find_daemon().expect("known").is_none());
        fs::write(&file, text.replace("1500", "1024")).expect("written");
        assert!(ok("ferroce config check").ends_with("links.toml: 1 link, no mistakes\n"));
    });
}

#[test]
fn rxe_cfg_has_the_output_of_early_soft_roce() {
    isolated("rxe_cfg_has_the_output_of_early_soft_roce", || {
        let _cleanup = Cleanup;
        cable("eno2", "far0", "10.0.0.1/24");
        cable("enp17s0", "far1", "10.0.1.1/24");
        let header = "Name     Link  Driver  Speed   NMTU  IPv4_addr  RDEV  RMTU";
        let status = ok("rxe_cfg");
        assert_eq!(status.lines().next(), Some(header), "{status}");
        assert_eq!(status, ok("rxe_cfg status"));
        assert_eq!(ok("rxe_cfg add enp17s0"), "");
        let status = ok("rxe_cfg");
        let row = "enp17s0  yes   veth    10GigE  1500  10.0.1.1   rxe0  1024  (3)\n";
        assert!(status.contains(row), "{status}");
        let row = "eno2     yes   veth    10GigE  1500  10.0.0.1\n";
        assert!(status.contains(row), "{status}");
        assert_eq!(ok("rxe_cfg status rxe0").lines().count(), 2);
        assert_eq!(ok("rxe_cfg persistent"), "enp17s0\n");
        ok("rxe_cfg add -n eno2");
        assert_eq!(ok("rxe_cfg persistent"), "enp17s0\n", "-n: not configured");
        ok("rxe_cfg mtu rxe0 512");
        assert!(
            ok("rxe_cfg").contains(" rxe0  512  (2)\n"),
            "{}",
            ok("rxe_cfg")
        );
        ok("rxe_cfg -f mtu 4096");
        assert!(
            ok("rxe_cfg").contains(" rxe0  1024  (3)\n"),
            "the largest that fits"
        );
        ok("rxe_cfg crc disable");
        assert!(ok("ferroce -d link show rxe1").contains(" crc off "));
        ok("rxe_cfg crc enable");
        assert!(ok("ferroce -d link show rxe1").contains(" crc on "));
        ok("rxe_cfg stop");
        assert_eq!(ok("ferroce link"), "");
        netdev::set_down("enp17s0");
        netdev::set_down("eno2");
        let status = ok("rxe_cfg start");
        let row = "enp17s0  yes   veth    10GigE  1500  10.0.1.1   rxe0  1024  (3)\n";
        assert!(status.contains(row), "set up: {status}");
        let row = "eno2     no    veth    10GigE  1500  10.0.0.1\n";
        assert!(status.contains(row), "not configured: {status}");
        netdev::set_up("eno2");
        assert!(!status.contains("rxe1"), "{status}");
        ok("rxe_cfg remove enp17s0");
        assert_eq!(ok("rxe_cfg persistent"), "");
        assert!(ok("rxe_cfg help").contains("crc enable|disable"));
        assert!(ok("rxe_cfg -h").contains("persistent"));
        for (line, complaint) in [
            ("rxe_cfg frobnicate", "unknown command `frobnicate`"),
            (
                "rxe_cfg add eth7",
                "netdev eth7 does not exist; existing netdevs: lo,",
            ),
            (
                "rxe_cfg remove rxe7",
                "no link is named rxe7 or uses a netdev rxe7; there are no links",
            ),
            (
                "rxe_cfg mtu 1500",
                "mtu `1500` is not one of 256, 512, 1024, 2048, 4096",
            ),
            (
                "rxe_cfg mtu rxe7 512",
                "link rxe7 does not exist; there are no links",
            ),
            ("rxe_cfg -x", "'-x'"),
            (
                "rxe_cfg crc maybe",
                "crc `maybe` is not valid; use `enable` or `disable`",
            ),
            ("rxe_cfg status rxe7", "link rxe7 does not exist"),
            ("rxe_cfg add", "`rxe_cfg add` needs an argument"),
        ] {
            let said = fails(line);
            assert!(said.contains(complaint), "{line}: {said}");
        }
    });
}

#[test]
fn rxe_init_adds_a_link_on_each_netdev() {
    isolated("rxe_init_adds_a_link_on_each_netdev", || {
        let _cleanup = Cleanup;
        let said = fails("rxe_init.sh");
        assert!(
            said.contains("hsn0: No such device: netdev hsn0 does not exist"),
            "{said}"
        );
        // Each command starts a ferroced while that of the previous command ends.
        for _ in 0..30 {
            let said = fails("rxe_init.sh");
            assert!(said.contains("netdev hsn0 does not exist"), "{said}");
        }
        cable("hsn0", "far0", "10.0.0.1/24");
        cable("hsn1", "far1", "10.0.1.1/24");
        assert_eq!(ok("rxe_init.sh"), "");
        assert_eq!(ok("rxe_init.sh hsn0 hsn1"), "", "hsn0 keeps its link");
        let lines = ok("rdma link");
        assert_eq!(
            lines,
            "link rxe0/1 state ACTIVE physical_state LINK_UP netdev hsn0 \n\
             link rxe1/1 state ACTIVE physical_state LINK_UP netdev hsn1 \n"
        );
    });
}

/// A service manager does this after a user has added links by hand.
#[test]
fn replace_takes_over_the_links_of_a_running_ferroced() {
    isolated("replace_takes_over_the_links_of_a_running_ferroced", || {
        let _cleanup = Cleanup;
        cable("eth0", "far0", "10.0.0.1/24");
        ok("ferroce link add rxe0 type rxe netdev eth0");
        ok("ferroce config save");
        ok("ferroce link add other type rxe netdev lo");
        let pid = || {
            find_daemon()
                .expect("reachable")
                .expect("running")
                .daemon_pid()
        };
        let before = pid();
        let said = fails("ferroced --configured");
        assert!(
            said.contains(&format!("ferroced runs already (process {before})")),
            "{said}"
        );
        let links = ok("ferroce link");
        assert_eq!(links.lines().count(), 2, "{links}");
        ok("ferroced --configured --replace");
        assert_ne!(pid(), before);
        assert_eq!(ok("ferroce link"), links);
        // With no ferroced running, --replace has no effect.
        end_daemon();
        ok("ferroced --configured --replace");
        assert_eq!(ok("ferroce link"), links);
    });
}
