//! `ferroce doctor`, `devinfo`, `gids`, `stat --watch` and `ping`, with a real ferroced.

mod common;

use ferroce_testnet::isolated;

use common::{Cleanup, ok, run};

#[test]
fn tables_of_gids_and_devices() {
    isolated("tables_of_gids_and_devices", || {
        let _cleanup = Cleanup;
        assert_eq!(ok("ferroce devinfo"), "No IB devices found\n");
        ok("ferroce link add rxe0 type rxe netdev lo");
        assert_eq!(
            ok("ferroce gids"),
            "DEV   PORT  INDEX  GID                                      IPv4       VER  NETDEV\n\
             rxe0  1     0      0000:0000:0000:0000:0000:0000:0000:0001             v2   lo\n\
             rxe0  1     1      0000:0000:0000:0000:0000:ffff:7f00:0001  127.0.0.1  v2   lo\n"
        );
        assert!(
            ok("ferroce -j gids rxe0")
                .starts_with(r#"[{"dev":"rxe0","port":1,"index":0,"gid":"0000:"#)
        );
        let info = ok("ferroce devinfo -d rxe0 -v");
        for line in [
            "hca_id:\trxe0\n",
            "transport:                      InfiniBand (0)\n",
            "node_guid:                      0200:00ff:fe00:0000\n",
            "state:                  PORT_ACTIVE (4)\n",
            "max_mtu:                4096 (5)\n",
            "active_mtu:             4096 (5)\n",
            "link_layer:             Ethernet\n",
            "phys_state:             LINK_UP (5)\n",
            "GID[  1]:\t\t0000:0000:0000:0000:0000:ffff:7f00:0001, RoCE v2\n",
        ] {
            assert!(info.contains(line), "{line}: {info}");
        }
        for line in ["gids rxe7", "devinfo rxe7"] {
            let output = run(&format!("ferroce {line}"));
            assert_eq!(output.status.code(), Some(1));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("no link `rxe7`; there is rxe0"), "{said}");
        }
        let watched = ok("ferroce stat rxe0 --watch 0.05 --count 2");
        let lines: Vec<&str> = watched.lines().collect();
        assert_eq!(lines.len(), 3, "{watched}");
        assert!(
            lines[0].starts_with("link          sent_pkts/s"),
            "{watched}"
        );
        assert!(lines[1].starts_with("rxe0 "), "{watched}");
    });
}

#[test]
fn the_doctor_finds_that_it_works() {
    isolated("the_doctor_finds_that_it_works", || {
        let _cleanup = Cleanup;
        let report = |line: &str| {
            let output = run(&format!("ferroce {line}"));
            let text = String::from_utf8(output.stdout).expect("text");
            (output.status.code(), text)
        };
        let (_, text) = report("doctor");
        assert!(text.contains("UDP port 4791 is free"), "{text}");
        assert!(text.contains("SEND    6 sizes"), "{text}");
        // Without `cargo xtask` there is no library, and that is said.
        let library = text.contains("no libibverbs.so.1 of Ferroce's");
        let code = if library { Some(1) } else { Some(0) };
        ok("ferroce link add rxe0 type rxe netdev lo");
        let (status, text) = report("doctor --no-transfer");
        assert_eq!(status, code, "{text}");
        assert!(text.contains("-g 1 / -x 1   127.0.0.1"), "{text}");
        assert!(
            text.contains("rxe0 on lo: ACTIVE, MTU 65536, so IB MTU 4096"),
            "{text}"
        );
        let (_, text) = report("-j doctor --no-transfer");
        let findings: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(
            findings.as_array().is_some_and(|all| all.len() >= 5),
            "{text}"
        );
    });
}

/// Somebody else has the port: the doctor says so, and ends with status 1.
#[test]
fn the_doctor_finds_a_taken_port() {
    isolated("the_doctor_finds_a_taken_port", || {
        #[allow(clippy::disallowed_methods)] // the stranger
        let _stranger = std::net::UdpSocket::bind("0.0.0.0:4791").expect("free here");
        let output = run("ferroce doctor --no-transfer");
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("FAILS port      UDP port 4791"), "{text}");
        assert!(text.ends_with("see `FAILS` above.\n"), "{text}");
    });
}

/// What a package brings along: a page for each command, and completions that know them.
#[test]
fn man_pages_and_completions_are_written() {
    let dir = std::env::temp_dir().join(format!("ferroce-generate-{}", std::process::id()));
    ok(&format!("ferroce generate {}", dir.display()));
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect("written");
    let page = read("man/man1/ferroce.1");
    let help = ok("ferroce --help");
    for command in [
        "config", "doctor", "gids", "link", "ping", "run", "shell", "stat",
    ] {
        assert!(
            help.contains(&format!("\n  {command} ")),
            "{command}: {help}"
        );
        assert!(page.contains(command), "{command}");
        assert!(dir.join(format!("man/man1/ferroce-{command}.1")).exists());
    }
    assert!(read("man/man1/ferroced.1").contains("configured"));
    assert!(read("bash-completion/completions/ferroce").contains("doctor"));
    assert!(read("zsh/vendor-completions/_ferroce").contains("doctor"));
    assert!(read("fish/vendor_completions.d/ferroced.fish").contains("configured"));
    std::fs::remove_dir_all(dir).expect("ours");
}
