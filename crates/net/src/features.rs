//! What this kernel can do, found out by trying.

use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use socket2::Domain;

use crate::{recv_ring, socket};

/// What the kernel offers beyond plain UDP. Each has a fallback; turning one off
/// by hand tests it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Features {
    /// `UDP_SEGMENT` (Linux 4.18): one system call sends a run of packets.
    pub gso: bool,
    /// `UDP_GRO` (Linux 5.0): one buffer brings a run of packets.
    pub gro: bool,
    /// `recvmmsg` and `sendmmsg`: one system call moves several buffers. Some
    /// sandboxes forbid them.
    pub mmsg: bool,
    /// IPv6.
    pub ipv6: bool,
}

/// What this kernel can do. Found out on the first call; what is missing is
/// logged then, once.
pub fn probe() -> Features {
    static FOUND: OnceLock<Features> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let features = try_out().unwrap_or_else(|error| {
            tracing::warn!(%error, "no UDP socket to try the kernel's features on");
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
                "no UDP_SEGMENT (it came with Linux 4.18): \
                 packets are sent one by one, several times slower"
            );
        }
        if !self.gro {
            tracing::warn!(
                "no UDP_GRO (it came with Linux 5.0): \
                 packets are received one by one, several times slower"
            );
        }
        if !self.mmsg {
            tracing::warn!("no recvmmsg or sendmmsg: one system call per buffer");
        }
        if !self.ipv6 {
            tracing::info!("no IPv6");
        }
    }
}

fn try_out() -> io::Result<Features> {
    let probe = socket::udp(Domain::IPV4)?;
    let accepts = |option| socket::set_number(&probe, libc::SOL_UDP, option, 1).is_ok();
    Ok(Features {
        gso: accepts(libc::UDP_SEGMENT),
        gro: accepts(libc::UDP_GRO),
        mmsg: recv_ring::can_receive_many(probe.as_fd()),
        ipv6: socket::udp(Domain::IPV6).is_ok(),
    })
}
