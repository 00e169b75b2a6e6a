//! The slot of a QPN, and the BPF programs that steer packets to slots.
//!
//! Classic BPF needs no privilege.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use ferroce_wire::ip::UDP_LEN;
use libc::{sock_filter, sock_fprog};

use crate::socket;

const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN_CONSTANT: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_ACCUMULATOR: u16 = (libc::BPF_RET | libc::BPF_A) as u16;

/// Bits of a QPN below its slot.
const INDEX_BITS: u32 = 16;
/// Bits of a QPN that hold its slot.
pub(crate) const SLOT_MASK: u32 = 0xff << INDEX_BITS;

/// Offset of the top byte of the destination QPN in the UDP payload.
pub(crate) const SLOT_OFFSET: usize = 5;

/// Top byte of the multicast QPN, 0xffffff.
const MULTICAST_SLOT: u32 = 0xff;

/// Returns the slot of a queue pair: the top byte of its number.
pub const fn slot_of_qpn(qpn: u32) -> u8 {
    (qpn >> INDEX_BITS) as u8
}

/// Returns the QPNs of a slot.
pub const fn qpns_of_slot(slot: u8) -> Range<u32> {
    let first = (slot as u32) << INDEX_BITS;
    first..first + (1 << INDEX_BITS)
}

/// Returns the slot that a packet is for; slot 0 if the packet is too short, as in the
/// kernel.
pub(crate) fn slot_of(payload: &[u8]) -> u8 {
    payload.get(SLOT_OFFSET).copied().unwrap_or(0)
}

/// Attaches the program that steers packets to the group of `fd`. It returns the top byte of
/// the destination QPN, and the kernel chooses the socket with that index.
pub(crate) fn steer_by_slot(fd: &impl AsFd) -> io::Result<()> {
    attach(
        fd,
        libc::SO_ATTACH_REUSEPORT_CBPF,
        &mut [
            instruction(LOAD_BYTE, SLOT_OFFSET as u32),
            instruction(RETURN_ACCUMULATOR, 0),
        ],
    )
}

/// Makes a socket drop all datagrams.
pub(crate) fn drop_all(fd: &impl AsFd) -> io::Result<()> {
    attach(
        fd,
        libc::SO_ATTACH_FILTER,
        &mut [instruction(RETURN_CONSTANT, 0)],
    )
}

/// Makes a socket drop datagrams for the multicast QPN.
pub(crate) fn drop_multicast(fd: &impl AsFd) -> io::Result<()> {
    // A socket filter sees the UDP header too.
    let slot = (UDP_LEN + SLOT_OFFSET) as u32;
    let mut branch = instruction(JUMP_IF_EQUAL, MULTICAST_SLOT);
    branch.jf = 1;
    attach(
        fd,
        libc::SO_ATTACH_FILTER,
        &mut [
            instruction(LOAD_BYTE, slot),
            branch,
            instruction(RETURN_CONSTANT, 0),
            instruction(RETURN_CONSTANT, u32::MAX),
        ],
    )
}

/// Ends [`drop_all`].
pub(crate) fn drop_none(fd: &impl AsFd) -> io::Result<()> {
    match socket::set_number(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        result => result,
    }
}

fn attach(fd: &impl AsFd, option: i32, program: &mut [sock_filter]) -> io::Result<()> {
    let program = sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    socket::set(fd, libc::SOL_SOCKET, option, &program)
}

const fn instruction(code: u16, k: u32) -> sock_filter {
    sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_the_top_byte_of_the_qpn() {
        for slot in [0, 1, 0x7f, 0xff] {
            let qpns = qpns_of_slot(slot);
            assert_eq!(qpns.len(), 1 << 16);
            for qpn in [qpns.start, qpns.end - 1] {
                assert_eq!(slot_of_qpn(qpn), slot);
                assert_eq!(qpn & SLOT_MASK, qpns.start);
            }
        }
    }
}
