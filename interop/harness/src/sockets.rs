//! Queries of the kernel's socket tables in this network namespace.

use std::fs;
use std::io;
use std::net::Ipv4Addr;

/// Returns true if a process listens on a TCP port.
///
/// # Errors
/// If the kernel's table cannot be read.
pub fn is_listening(port: u16) -> io::Result<bool> {
    const LISTEN: &str = "0A";
    any_row(["tcp", "tcp6"], |local, state| {
        local.ends_with(&hexadecimal(port)) && state == LISTEN
    })
}

/// Returns true if a UDP port is bound.
///
/// # Errors
/// If the kernel's table cannot be read.
pub fn is_bound(port: u16) -> io::Result<bool> {
    any_row(["udp", "udp6"], |local, _| {
        local.ends_with(&hexadecimal(port))
    })
}

/// Returns true if this host has joined a multicast group.
///
/// # Errors
/// If the kernel's table cannot be read.
pub fn is_joined(group: Ipv4Addr) -> io::Result<bool> {
    let table = fs::read_to_string("/proc/thread-self/net/igmp")?;
    let group = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    Ok(table.split_whitespace().any(|word| word == group))
}

fn hexadecimal(port: u16) -> String {
    format!(":{port:04X}")
}

/// Returns true if `which` accepts the local address and state of a socket in the tables.
fn any_row(tables: [&str; 2], which: impl Fn(&str, &str) -> bool) -> io::Result<bool> {
    for table in tables {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}"))?;
        for row in text.lines() {
            let words: Vec<&str> = row.split_whitespace().collect();
            if let [_, local, _, state, ..] = words[..]
                && which(local, state)
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
