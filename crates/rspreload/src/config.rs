//! The configuration: which sockets become rsockets, and their options.
//!
//! `/etc/rdma/rsocket/preload_config` has lines of four words: a program, a domain, a type
//! and a protocol; a star stands for any. Without such lines all TCP and UDP sockets become
//! rsockets. `RS_SQ_SIZE`, `RS_RQ_SIZE` and `RS_INLINE` set options of every rsocket.

use core::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use crate::rsockets::rsetsockopt;

const FILE: &str = "/etc/rdma/rsocket/preload_config";

/// The configuration of this process.
#[derive(Debug, Default)]
pub(crate) struct Config {
    rules: Vec<Rule>,
    options: Vec<(c_int, c_int)>,
    pub(crate) fork_safe: bool,
}

/// A line of the file; `None` stands for a star.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Rule {
    program: Option<String>,
    domain: Option<c_int>,
    kind: Option<c_int>,
    protocol: Option<c_int>,
}

const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;

impl Config {
    pub(crate) fn get() -> &'static Config {
        static CONFIG: OnceLock<Config> = OnceLock::new();
        CONFIG.get_or_init(|| {
            let text = std::fs::read_to_string(FILE).unwrap_or_default();
            let number = |name: &str| std::env::var(name).ok()?.trim().parse::<c_int>().ok();
            let options = [
                ("RS_SQ_SIZE", RDMA_SQSIZE),
                ("RS_RQ_SIZE", RDMA_RQSIZE),
                ("RS_INLINE", RDMA_INLINE),
            ];
            let set = |(name, option): (&str, c_int)| Some((option, number(name)?));
            Config {
                rules: rules(&text),
                options: options.into_iter().filter_map(set).collect(),
                fork_safe: number("RDMAV_FORK_SAFE").is_some_and(|value| value != 0),
            }
        })
    }

    /// True if a new socket of this program becomes an rsocket.
    pub(crate) fn wants(&self, domain: c_int, kind: c_int, protocol: c_int) -> bool {
        let known = matches!(
            (domain, kind, protocol),
            (
                libc::AF_INET | libc::AF_INET6,
                libc::SOCK_STREAM,
                0 | libc::IPPROTO_TCP
            ) | (
                libc::AF_INET | libc::AF_INET6,
                libc::SOCK_DGRAM,
                0 | libc::IPPROTO_UDP
            )
        );
        known
            && (self.rules.is_empty()
                || self
                    .rules
                    .iter()
                    .any(|rule| rule.fits(program(), domain, kind, protocol)))
    }

    /// Sets the options from the environment.
    pub(crate) fn set_up(&self, rsocket: c_int) {
        for (option, value) in &self.options {
            let pointer = (&raw const *value).cast::<c_void>();
            // SAFETY: the value is an `int` of 4 bytes.
            unsafe { rsetsockopt(rsocket, SOL_RDMA, *option, pointer, 4) };
        }
    }
}

impl Rule {
    fn fits(&self, program: &str, domain: c_int, kind: c_int, protocol: c_int) -> bool {
        self.program.as_deref().is_none_or(|name| name == program)
            && self.domain.is_none_or(|wanted| wanted == domain)
            && self.kind.is_none_or(|wanted| wanted == kind)
            && (protocol == 0 || self.protocol.is_none_or(|wanted| wanted == protocol))
    }
}

fn rules(text: &str) -> Vec<Rule> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(rule).collect()
}

fn rule(line: &str) -> Option<Rule> {
    let mut words = line.split_whitespace();
    let program = words.next()?;
    let domain = number(
        words.next()?,
        "AF_ PF_",
        &[("INET", libc::AF_INET), ("INET6", libc::AF_INET6)],
    )?;
    let kinds = [("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)];
    let kind = number(words.next()?, "SOCK_", &kinds)?;
    let protocols = [("TCP", libc::IPPROTO_TCP), ("UDP", libc::IPPROTO_UDP)];
    let protocol = number(words.next()?, "IPPROTO_", &protocols)?;
    Some(Rule {
        program: (program != "*").then(|| program.to_owned()),
        domain,
        kind,
        protocol,
    })
}

/// Reads a word: `Some(None)` for a star, a number for a name with or without a prefix or
/// for digits, and `None` for any other word.
#[allow(clippy::option_option)] // an unknown word, and the star
fn number(word: &str, prefixes: &str, names: &[(&str, c_int)]) -> Option<Option<c_int>> {
    if word == "*" {
        return Some(None);
    }
    let upper = word.to_uppercase();
    let bare = prefixes
        .split(' ')
        .find_map(|prefix| upper.strip_prefix(prefix));
    let bare = bare.unwrap_or(&upper);
    let known = names.iter().find(|(name, _)| *name == bare);
    let value = known.map(|(_, value)| *value).or(word.parse().ok())?;
    Some(Some(value))
}

/// Returns the name with which this program was started.
fn program() -> &'static str {
    unsafe extern "C" {
        static program_invocation_short_name: *const core::ffi::c_char;
    }
    // SAFETY: libc sets the variable to a string or NULL before `main`.
    let name = unsafe {
        let name = program_invocation_short_name;
        if name.is_null() {
            return "";
        }
        CStr::from_ptr(name)
    };
    name.to_str().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_select_sockets_by_program_and_type() {
        let text = "# program domain type protocol\n\
                    iperf3 inet stream tcp\n\
                    * AF_INET6 SOCK_DGRAM *\n\
                    short line\n\
                    netperf 2 1 6\n\
                    bad ipx stream tcp\n";
        let rules = rules(text);
        assert_eq!(rules.len(), 3);
        let (v4, v6) = (libc::AF_INET, libc::AF_INET6);
        let (stream, dgram) = (libc::SOCK_STREAM, libc::SOCK_DGRAM);
        assert!(rules[0].fits("iperf3", v4, stream, 0));
        assert!(rules[0].fits("iperf3", v4, stream, libc::IPPROTO_TCP));
        assert!(!rules[0].fits("iperf", v4, stream, 0));
        assert!(!rules[0].fits("iperf3", v6, stream, 0));
        assert!(rules[1].fits("any", v6, dgram, libc::IPPROTO_UDP));
        assert!(!rules[1].fits("any", v6, stream, 0));
        assert_eq!((rules[2].domain, rules[2].protocol), (Some(v4), Some(6)));
    }

    #[test]
    fn without_lines_all_tcp_and_udp_sockets_are_selected() {
        let config = Config::default();
        assert!(config.wants(libc::AF_INET, libc::SOCK_STREAM, 0));
        assert!(config.wants(libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP));
        assert!(!config.wants(libc::AF_UNIX, libc::SOCK_STREAM, 0));
        assert!(!config.wants(libc::AF_INET, libc::SOCK_RAW, 1));
        assert!(!config.wants(libc::AF_INET, libc::SOCK_STREAM, 132));
    }
}
