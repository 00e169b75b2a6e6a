//! The sockets on a UDP or TCP port, from `/proc/net/udp` and `/proc/net/tcp`.
//!
//! Creating a slot reads the table; sending and receiving never do.

use std::fs;
use std::io;
use std::path::Path;

/// The table of the calling thread's network namespace, which may differ from the
/// process's.
const V4: &str = "/proc/thread-self/net/udp";
const V6: &str = "/proc/thread-self/net/udp6";

/// A socket bound to the port.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bound {
    /// True if the socket is bound to the wildcard address.
    pub(crate) wildcard: bool,
    /// The user who created the socket.
    pub(crate) uid: u32,
    /// The socket's inode.
    pub(crate) inode: u64,
}

/// Returns the sockets on a port, of one IP family.
pub(crate) fn sockets_on(port: u16, v6: bool) -> io::Result<Vec<Bound>> {
    let table = fs::read_to_string(if v6 { V6 } else { V4 })?;
    Ok(parse(&table, port))
}

/// Returns the holder of a TCP port, for the message of a `bind` that has failed.
pub fn tcp_port_holder(port: u16) -> String {
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let tables = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok());
    let bound: Vec<Bound> = tables.flat_map(|table| parse(&table, port)).collect();
    let process = bound.iter().find_map(|socket| process_with(socket.inode));
    match (process, bound.first()) {
        (Some((pid, name)), _) => format!("process {pid} ({name}) has it"),
        (None, Some(socket)) => format!("a socket of user {} has it", socket.uid),
        (None, None) => "a process that this user cannot see has it".to_owned(),
    }
}

fn parse(table: &str, port: u16) -> Vec<Bound> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| parse_line(line, port))
        .collect()
}

/// Parses `sl local_address remote st queues timer retransmits uid timeout inode ...`
fn parse_line(line: &str, port: u16) -> Option<Bound> {
    let mut fields = line.split_ascii_whitespace();
    let (address, bound_port) = fields.nth(1)?.rsplit_once(':')?;
    if u16::from_str_radix(bound_port, 16) != Ok(port) {
        return None;
    }
    Some(Bound {
        wildcard: address.bytes().all(|digit| digit == b'0'),
        uid: fields.nth(5)?.parse().ok()?,
        inode: fields.nth(1)?.parse().ok()?,
    })
}

/// Returns PID and name of a process that has a socket open, if this user may inspect it.
pub(crate) fn process_with(inode: u64) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, entry.path()))
        })
        .find(|(_, folder)| has_open(folder, &wanted))
        .map(|(pid, folder)| {
            let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
            (pid, name.trim_end().to_owned())
        })
}

fn has_open(process: &Path, wanted: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    descriptors
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| target.to_str() == Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_on_a_port_are_read_from_the_kernels_table() {
        let v4 = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n \
             1047: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 22530 2 0000000000000000 0\n \
             1047: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 22531 2 0000000000000000 0\n \
             1048: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 22532 2 0000000000000000 0\n";
        let found = parse(v4, 4791);
        let expected = [(true, 1000, 22530), (false, 0, 22531)];
        assert_eq!(
            found,
            expected.map(|(wildcard, uid, inode)| Bound {
                wildcard,
                uid,
                inode
            })
        );
        let v6 = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n \
             1047: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 9 2 0000000000000000 0\n";
        assert_eq!(parse(v6, 4791)[0].uid, 1001);
        assert_eq!(parse("", 4791), []);
        assert_eq!(parse("header\nnonsense\n", 4791), []);
    }
}
