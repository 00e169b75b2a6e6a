//! Checks the text by the rules of OpenMetrics, and the names that the dashboard uses.

use std::collections::BTreeSet;

use ferroce_control::Process;

use super::*;

fn counted(link: &str, process: Option<Process>, value: u64) -> LinkCounters {
    let names = Counter::ALL.iter().map(|counter| counter.name().into());
    LinkCounters {
        link: link.into(),
        process,
        values: names.map(|name| (name, value)).collect(),
    }
}

fn of_rxe0(scope: Scope) -> String {
    let links = [LinkInfo::new("rxe0", "lo", 1)];
    let process = Process {
        pid: 7,
        program: "a \"b\\c\"\nd".into(),
        slots: vec![1],
    };
    let counters = [
        counted("rxe0", None, 5),
        counted("rxe0", Some(process), u64::MAX),
    ];
    open_metrics(scope, &links, &counters)
}

#[test]
fn link_has_state_and_counters() {
    let text = of_rxe0(Scope::Links);
    for line in [
        "# TYPE ferroce_link info",
        "ferroce_link_info{link=\"rxe0\",netdev=\"lo\",type=\"rxe\"} 1",
        "# TYPE ferroce_link_active gauge",
        "ferroce_link_active{link=\"rxe0\"} 0",
        "ferroce_link_programs{link=\"rxe0\"} 1",
        "# TYPE ferroce_link_sent_pkts counter",
        "# HELP ferroce_link_sent_pkts Packets handed to the network.",
        "ferroce_link_sent_pkts_total{link=\"rxe0\"} 5",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing: {text}");
    }
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    assert!(!text.contains("ferroce_program"), "{text}");
}

#[test]
fn labels_are_escaped() {
    let text = of_rxe0(Scope::Programs);
    let line = "ferroce_program_sent_pkts_total\
                {link=\"rxe0\",pid=\"7\",program=\"a \\\"b\\\\c\\\"\\nd\"} \
                18446744073709551615\n";
    assert!(text.contains(line), "{text}");
    assert!(!text.contains("ferroce_link_"), "{text}");
}

/// Checks text by the rules of OpenMetrics 1.0. Returns the names of its samples.
///
/// Each family has one TYPE and one HELP, and its samples follow without a gap. Each sample
/// has the family's name with the suffix of its type, distinct labels and a number. The text
/// ends with `# EOF`.
fn check(text: &str) -> BTreeSet<String> {
    let lines = text.strip_suffix("# EOF\n").expect("an end");
    let mut families = BTreeSet::new();
    let mut samples = BTreeSet::new();
    let mut names = BTreeSet::new();
    let (mut family, mut suffix) = ("", "");
    for line in lines.lines() {
        assert!(!line.is_empty() && line.trim() == line, "{line:?}");
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("name and type");
            assert!(families.insert(name), "{name} comes twice");
            assert!(is_name(name), "{name}");
            family = name;
            suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                "gauge" => "",
                other => panic!("type {other}"),
            };
            assert!(suffix.is_empty() || !name.ends_with(suffix), "{name}");
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("name and help");
            assert_eq!(name, family, "the help of the present family");
            assert!(help.ends_with('.'), "{help}");
        } else {
            let (name, rest) = line.split_once('{').expect("labels");
            let (labels, value) = rest.rsplit_once("} ").expect("a value");
            assert_eq!(name, format!("{family}{suffix}"), "{line}");
            assert!(samples.insert((name, labels)), "{line} comes twice");
            value.parse::<u64>().expect("a number");
            check_labels(labels);
            names.insert(name.to_owned());
        }
    }
    names
}

/// Checks `name="value",...`, with escapes in the values.
fn check_labels(labels: &str) {
    let mut rest = labels;
    let mut seen = BTreeSet::new();
    loop {
        let (name, after) = rest.split_once("=\"").expect("a label");
        assert!(is_name(name) && seen.insert(name), "{labels}");
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next().expect("a quote at the end") {
                (at, '"') => break at,
                (_, '\\') => {
                    let (_, escaped) = characters.next().expect("an escaped character");
                    assert!(matches!(escaped, '\\' | '"' | 'n'), "{labels}");
                }
                _ => {}
            }
        };
        match after[end + 1..].strip_prefix(',') {
            Some(next) => rest = next,
            None => return assert_eq!(&after[end + 1..], "", "{labels}"),
        }
    }
}

fn is_name(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_lowercase() || c == '_';
    name.starts_with(letters) && name.chars().all(|c| letters(c) || c.is_ascii_digit())
}

#[test]
fn text_keeps_the_rules_of_the_format() {
    for scope in [Scope::Links, Scope::Programs, Scope::All] {
        let names = check(&of_rxe0(scope));
        assert!(names.len() >= Counter::ALL.len(), "{names:?}");
        check(&open_metrics(scope, &[], &[]));
    }
}

#[test]
fn metrics_of_the_dashboard_exist() {
    let names = check(&of_rxe0(Scope::All));
    let dashboard = include_str!("../../../../../docs/grafana-dashboard.json");
    let json: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
    let panels = json["panels"].as_array().expect("panels");
    let mut used = 0;
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    for target in targets.flatten() {
        let expression = target["expr"].as_str().expect("an expression");
        let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for name in words.filter(|word| word.starts_with("ferroce_")) {
            assert!(names.contains(name), "{name} of {expression} is no metric");
            used += 1;
        }
    }
    assert!(used > 10, "{used} metrics are used");
}
