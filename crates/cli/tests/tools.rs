//! `ferroce doctor`, `devinfo`, `gids`, `stat --watch` and `ping`, with a real ferroced.

mod common;

use ferroce_testnet::isolated;

use common::{Cleanup, ok, run};

#[test]
fn gids_devinfo_and_watch_have_their_formats() {
    isolated("gids_devinfo_and_watch_have_their_formats", || {
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
            let expected = "link rxe7 does not exist; existing links: rxe0";
            assert!(said.contains(expected), "{said}");
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
fn doctor_reports_a_working_machine() {
    isolated("doctor_reports_a_working_machine", || {
        let _cleanup = Cleanup;
        let report = |line: &str| {
            let output = run(&format!("ferroce {line}"));
            let text = String::from_utf8(output.stdout).expect("text");
            (output.status.code(), text)
        };
        let (_, text) = report("doctor");
        assert!(text.contains("UDP port 4791 is free"), "{text}");
        assert!(text.contains("SEND    6 sizes"), "{text}");
        // Only `cargo xtask` builds the library. Without it the doctor fails.
        let is_missing = text.contains("Ferroce's libibverbs.so.1 is not beside");
        let code = if is_missing { Some(1) } else { Some(0) };
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

/// Another program has the port: the doctor reports it and exits with status 1.
#[test]
fn doctor_fails_if_the_port_is_taken() {
    isolated("doctor_fails_if_the_port_is_taken", || {
        #[allow(clippy::disallowed_methods)] // the other program
        let _stranger = std::net::UdpSocket::bind("0.0.0.0:4791").expect("free here");
        let output = run("ferroce doctor --no-transfer");
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("FAILS port      UDP port 4791"), "{text}");
        assert!(
            text.ends_with("correct the problems marked `FAILS`.\n"),
            "{text}"
        );
    });
}

/// A package contains a page for each command, and completions.
#[test]
fn man_pages_and_completions_are_written() {
    let dir = std::env::temp_dir().join(format!("ferroce-generate-{}", std::process::id()));
    ok(&format!("ferroce generate {}", dir.display()));
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect("written");
    let page = read("man/man1/ferroce.1");
    let help = ok("ferroce --help");
    for command in [
        "capture", "config", "demo", "devinfo", "doctor", "explain", "gids", "link", "ping",
        "resource", "run", "shell", "stat", "top",
    ] {
        assert!(
            help.contains(&format!("\n  {command} ")),
            "{command}: {help}"
        );
        assert!(page.contains(command), "{command}");
        assert!(dir.join(format!("man/man1/ferroce-{command}.1")).exists());
    }
    assert!(read("man/man1/ferroced.1").contains("configured"));
    for (page, synopsis, related) in [
        ("ferroce", "ferroce [OPTIONS] <COMMAND>", "ferroced(1)"),
        ("ferroced", "ferroced [OPTIONS]", "ferroce(1)"),
        (
            "ferroce-link-add",
            "ferroce link add NAME type rxe|siw netdev IF",
            "ferroce-link(1)",
        ),
        (
            "ferroce-run",
            "ferroce run [OPTIONS] [PROGRAM]...",
            "ferroce(1)",
        ),
        (
            "ferroce-resource",
            "ferroce resource show qp|cm_id",
            "ferroce(1)",
        ),
        ("ferroce-rdma", "rdma [-force] -batch FILE", "rdma(8)"),
        (
            "ferroce-rxe_cfg",
            "rxe_cfg [OPTIONS] add ethN",
            "ferroce(1)",
        ),
    ] {
        let text = read(&format!("man/man1/{page}.1")).replace("\\-", "-");
        let section = |name: &str| {
            let (_, rest) = text.split_once(&format!(".SH {name}\n")).expect(name);
            rest.split("\n.SH ").next().unwrap_or_default().to_owned()
        };
        let lines = section("SYNOPSIS");
        assert!(lines.contains(synopsis), "{page}: {lines}");
        let others = section("\"SEE ALSO\"");
        assert!(others.contains(related), "{page}: {others}");
        assert!(
            !text.contains("EXTRA") && !text.contains("--guard"),
            "{page}"
        );
        assert!(!text.contains("generate"), "{page}: hidden");
    }
    assert!(read("zsh/vendor-completions/_ferroce").contains("ferroce"));
    assert!(read("fish/vendor_completions.d/ferroce.fish").contains("complete -c ferroce"));
    assert!(read("fish/vendor_completions.d/ferroced.fish").contains("configured"));
    std::fs::remove_dir_all(dir).expect("ours");
}

/// bash offers the present links and netdevs, and no hidden command.
#[test]
fn bash_completes_links_and_netdevs() {
    isolated("bash_completes_links_and_netdevs", || {
        if !std::path::Path::new("/bin/bash").exists() {
            let line = "*** SKIPPED: no bash ***";
            assert!(std::env::var_os("CI").is_none(), "{line}");
            return eprintln!("{line}");
        }
        let _cleanup = Cleanup;
        let dir = std::env::temp_dir().join(format!("ferroce-complete-{}", std::process::id()));
        ok(&format!("ferroce generate {}", dir.display()));
        ok("ferroce link add storage type rxe netdev lo");
        let script = dir.join("bash-completion/completions/ferroce");
        let completed = |words: &str| {
            let count = words.split(' ').count();
            let line = format!(
                "source {}; COMP_WORDS=({} {}); COMP_CWORD={count}; _ferroce; \
                 echo \"${{COMPREPLY[*]}}\"",
                script.display(),
                common::FERROCE,
                words.replace("_", "''"),
            );
            let output = std::process::Command::new("/bin/bash")
                .args(["-c", &line])
                .output()
                .expect("bash starts");
            let text = String::from_utf8(output.stdout).expect("text");
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(completed("link delete _"), "storage");
        assert_eq!(completed("stat sto"), "storage");
        assert_eq!(completed("link add rxe1 type rxe netdev _"), "lo");
        assert_eq!(completed("run --netdev _"), "lo");
        assert_eq!(completed("do"), "doctor");
        assert_eq!(completed("gen"), "", "it is hidden");
        std::fs::remove_dir_all(dir).expect("ours");
    });
}
