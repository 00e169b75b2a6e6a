//! Detection of the kernel's UDP features.

use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use socket2::Domain;

use crate::{recv_ring, socket};

/// Kernel features beyond plain UDP. Each has a fallback; tests clear a field to use it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Features {
    /// `UDP_SEGMENT` (Linux 4.18): one system call sends a run of packets.
    pub gso: bool,
    /// `UDP_GRO` (Linux 5.0): one buffer receives a run of packets.
    pub gro: bool,
    /// `recvmmsg` and `sendmmsg`: one system call transfers several buffers. Some
    /// sandboxes forbid them.
    pub mmsg: bool,
    /// IPv6.
    pub ipv6: bool,
}

/// Returns the features of this kernel. The first call tries each feature and logs those
/// that are missing.
pub fn probe() -> Features {
    static FOUND: OnceLock<Features> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let features = detect().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot create a UDP socket to test the kernel's features; using none of them");
            Features {
                gso: false,
                gro: false,
                mmsg: false,
                ipv6: false,
            }
        });
        features.log();
        features
    })
}

impl Features {
    fn log(&self) {
        if !self.gso {
            tracing::warn!(
                "the kernel lacks UDP_SEGMENT (Linux 4.18 has it): \
                 each packet takes one system call, which is several times slower"
            );
        }
        if !self.gro {
            tracing::warn!(
                "the kernel lacks UDP_GRO (Linux 5.0 has it): \
                 packets are received one by one, which is several times slower"
            );
        }
        if !self.mmsg {
            tracing::warn!(
                "recvmmsg or sendmmsg is not available: each buffer takes one system call"
            );
        }
        if !self.ipv6 {
            tracing::info!("the kernel has no IPv6");
        }
    }
}

fn detect() -> io::Result<Features> {
    let probe = socket::udp(Domain::IPV4)?;
    let accepts = |option| socket::set_number(&probe, libc::SOL_UDP, option, 1).is_ok();
    Ok(Features {
        gso: accepts(libc::UDP_SEGMENT),
        gro: accepts(libc::UDP_GRO),
        mmsg: recv_ring::can_receive_many(probe.as_fd()),
        ipv6: socket::udp(Domain::IPV6).is_ok(),
    })
}
