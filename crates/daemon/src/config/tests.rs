use super::*;

fn link(name: &str, netdev: &str) -> LinkConfig {
    LinkConfig {
        name: name.into(),
        kind: "rxe".into(),
        netdev: netdev.into(),
        mtu: None,
        crc: true,
        lids: false,
        patience: 0,
        speed: None,
        local: true,
        strict: String::new(),
        profile: String::new(),
    }
}

#[test]
fn links_are_read_from_the_file() {
    let text = "\
# mine
[[link]]
name = \"rxe0\"
netdev = \"eth0\"

[[link]]
name = \"rxe_b\"
netdev = \"eth1\"
type = \"rxe\"
mtu = 2048
crc = false
";
    let second = LinkConfig {
        mtu: Some(2048),
        crc: false,
        ..link("rxe_b", "eth1")
    };
    assert_eq!(parse(text).unwrap(), [link("rxe0", "eth0"), second]);
    assert_eq!(parse("").unwrap(), []);
}

#[test]
fn strict_mode_and_profile_are_read() {
    let text = "[[link]]\nname = \"r\"\nnetdev = \"lo\"\nstrict = \"error\"\nprofile = \"efa\"\n";
    let expected = LinkConfig {
        strict: "error".into(),
        profile: "efa".into(),
        ..link("r", "lo")
    };
    assert_eq!(parse(text).unwrap(), [expected]);
    let off = text.replace("error", "off").replace("efa", "off");
    assert_eq!(parse(&off).unwrap(), [link("r", "lo")]);
    for (good, bad, line) in [("error", "yes", 4), ("efa", "cx9", 5)] {
        let text = text.replace(good, bad);
        let (at, reason) = parse(&text).unwrap_err();
        assert_eq!(line_of(&text, at), line, "{reason}");
        assert!(reason.contains(bad), "{reason}");
    }
}

#[test]
fn errors_name_the_line() {
    let beginning = "# one\n[[link]]\nname = \"rxe0\"\n";
    for (rest, line, complaint) in [
        ("netdev = 7\n", 4, "expected a string"),
        ("", 2, "missing field `netdev`"),
        (
            "netdev = \"eth0\"\ncolour = 3\n",
            5,
            "unknown field `colour`",
        ),
        (
            "netdev = \"eth0\"\nspeed = 0\n",
            5,
            "speed 0 is not between 1 and 400000",
        ),
        (
            "netdev = \"eth0\"\nmtu = 1500\n",
            5,
            "mtu 1500 is not one of 256",
        ),
        ("netdev = \"eth0\"\nmtu = -1\n", 5, "mtu -1 is not one of"),
        (
            "netdev = \"eth0\"\ntype = \"irdma\"\n",
            5,
            "type `irdma` is not known",
        ),
        ("netdev = \"eth0\"\ncrc = maybe\n", 5, ""),
        (
            "netdev = \"eth0\"\n[[link]]\nname = \"rxe0\"\nnetdev = \"eth1\"\n",
            6,
            "name `rxe0` appears twice, first in line 3",
        ),
        (
            "netdev = \"eth0\"\n[[link]]\nname = \"a/b\"\nnetdev = \"eth1\"\n",
            6,
            "`a/b` is not valid",
        ),
    ] {
        let text = format!("{beginning}{rest}");
        let (at, reason) = parse(&text).unwrap_err();
        assert_eq!(line_of(&text, at), line, "{rest}: {reason}");
        assert!(reason.contains(complaint), "{rest}: {reason}");
    }
}

#[test]
fn edits_keep_comments_and_order() {
    let dir = std::env::temp_dir().join(format!("ferroce-config-{}", std::process::id()));
    let path = dir.join(FILE);
    remember(&path, &link("rxe0", "eth0")).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("# by hand\n{text}")).unwrap();
    let other = LinkConfig {
        mtu: Some(512),
        crc: false,
        ..link("rxe1", "eth1")
    };
    remember(&path, &other).unwrap();
    assert_eq!(load(&path).unwrap(), [link("rxe0", "eth0"), other.clone()]);
    assert!(
        fs::read_to_string(&path)
            .unwrap()
            .starts_with("# by hand\n")
    );
    // The same netdev is the same link under another name.
    remember(&path, &link("mine", "eth0")).unwrap();
    assert_eq!(load(&path).unwrap(), [other, link("mine", "eth0")]);
    assert!(forget(&path, "rxe1").unwrap());
    assert!(!forget(&path, "rxe1").unwrap());
    assert!(forget(&path, "eth0").unwrap(), "by netdev");
    assert_eq!(load(&path).unwrap(), []);
    fs::write(&path, "[[link]]\nname = 3\n").unwrap();
    let error = remember(&path, &link("rxe0", "eth0"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("links.toml: line 2: "), "{error}");
    fs::remove_dir_all(dir).unwrap();
}
