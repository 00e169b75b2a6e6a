//! An RDMA WRITE from one process to another.
//!
//! It needs a link, for example on loopback:
//!
//! ```text
//! cargo build
//! target/debug/ferroce link add rxe0 type rxe netdev lo
//! cargo run -p ferroce-device --example write -- rxe0
//! ```
//!
//! The program starts itself a second time. The second process, the target, registers memory
//! and sends its address and key to the first over a pipe. The first writes a message there.
//! The target's program takes no part in the WRITE: it sleeps until the pipe says that the
//! WRITE has completed, and then looks into its memory.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Command, Stdio};
use std::sync::Arc;

use ferroce_device::transport::{
    Access, AttrMask, QpAttr, QpCap, QpInit, QpState, QpType, SendData, SendFlags, SendOp, SendWr,
    Wc, WcStatus,
};
use ferroce_device::{AhAttr, Buffer, Cq, Device, Qp};
use ferroce_wire::{Mtu, Psn};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const MESSAGE: &[u8] = b"written by RDMA";
const SIZE: usize = 4096;
/// Any number below 2^24 will do.
const FIRST_PSN: u32 = 1;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [role, link] if role == "--target" => target(link),
        [link] => writer(
            link,
            Command::new(std::env::current_exe()?).args(["--target", link]),
        ),
        _ => Err("usage: write LINK (`ferroce link` lists the links)".into()),
    }
}

/// Writes to the memory of the target, which `command` starts.
pub(crate) fn writer(link: &str, command: &mut Command) -> Result<()> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut to_target = child.stdin.take().ok_or("a pipe")?;
    let mut from_target = BufReader::new(child.stdout.take().ok_or("a pipe")?).lines();
    let mut answer = |key: &str| -> Result<String> {
        // Other lines come from the harness, if the target is part of a test.
        loop {
            let line = from_target.next().ok_or("the target has ended")??;
            if let Some((_, rest)) = line.split_once(key) {
                return Ok(rest.to_owned());
            }
        }
    };

    let end = End::open(link)?;
    writeln!(to_target, "{}", end.describe()?)?;
    let peer: Peer = answer("target: ")?.parse()?;
    end.connect(&peer)?;

    end.buffer.write(0, MESSAGE);
    end.qp.post_send(SendWr {
        wr_id: 1,
        op: SendOp::Write {
            remote_addr: peer.addr,
            rkey: peer.rkey,
            imm: None,
        },
        flags: SendFlags::SIGNALED,
        data: SendData::Sges(&[end.buffer.sge(0, MESSAGE.len() as u32)]),
        ud: None,
        xrc_srq: 0,
    })?;
    let completion = end.completion();
    if completion.status != WcStatus::Success {
        let cause = end.device.last_failure().unwrap_or_default();
        return Err(format!("the WRITE failed: {}: {cause}", completion.status).into());
    }
    writeln!(to_target, "the WRITE has completed")?;
    let found = answer("found: ")?;
    println!("The target has in its memory: {found}");
    drop(to_target);
    match child.wait()?.success() && found.as_bytes() == MESSAGE {
        true => Ok(()),
        false => Err("the target has something else".into()),
    }
}

/// Registers memory, waits until the writer says that it has written, and prints it.
pub(crate) fn target(link: &str) -> Result<()> {
    let mut lines = stdin().lines();
    let peer: Peer = lines.next().ok_or("the writer has ended")??.parse()?;
    let end = End::open(link)?;
    end.connect(&peer)?;
    println!("target: {}", end.describe()?);
    lines.next().ok_or("the writer has ended")??;
    let mut found = [0; MESSAGE.len()];
    end.buffer.read(0, &mut found);
    println!("found: {}", String::from_utf8_lossy(&found));
    Ok(())
}

/// One end of a connection: a queue pair and registered memory.
struct End {
    qp: Qp,
    cq: Arc<Cq>,
    buffer: Buffer,
    device: Arc<Device>,
}

impl End {
    fn open(link: &str) -> Result<End> {
        let device = Device::open(link)?;
        let pd = device.alloc_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let buffer = Buffer::new(&device, &pd, SIZE, access)?;
        let cq = device.create_cq(16, None)?;
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: Some(pd),
            send_cq: Some(Arc::clone(cq.queue())),
            recv_cq: Some(Arc::clone(cq.queue())),
            srq: None,
            xrcd: None,
            cap: QpCap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: false,
        };
        let qp = device.create_qp(&init, &[&cq])?;
        Ok(End {
            qp,
            cq,
            buffer,
            device,
        })
    }

    /// Returns the numbers that the peer needs, as text.
    fn describe(&self) -> Result<String> {
        let link = self.device.link();
        let gid = link.gids.first().ok_or("the link has no address")?;
        let gid = u128::from_be_bytes(gid.raw());
        let (qpn, addr, rkey) = (self.qp.qpn(), self.buffer.addr(), self.buffer.rkey());
        Ok(format!("{qpn} {gid} {addr} {rkey}"))
    }

    /// Moves the queue pair through INIT and RTR to RTS.
    fn connect(&self, peer: &Peer) -> Result<()> {
        let link = self.device.link();
        let gid = link.gids.first().ok_or("the link has no address")?;
        let address = AhAttr {
            sgid_index: u8::try_from(gid.index)?,
            dgid: peer.gid,
            port: 1,
            ..AhAttr::default()
        };
        let mut attr = QpAttr {
            access: Access::REMOTE_WRITE,
            path_mtu: Mtu::from_bytes(link.active_mtu as usize).unwrap_or(Mtu::Mtu1024),
            dest_qpn: peer.qpn,
            rq_psn: Psn::new(FIRST_PSN),
            sq_psn: Psn::new(FIRST_PSN),
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let rtr = AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        let rts = AttrMask::SQ_PSN
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
        for (state, mask) in [
            (QpState::Init, init),
            (QpState::Rtr, rtr),
            (QpState::Rts, rts),
        ] {
            attr.state = state;
            let to = (state == QpState::Rtr).then_some(&address);
            self.qp.modify(&attr, mask | AttrMask::STATE, to)?;
        }
        Ok(())
    }

    /// Polls until a work request completes.
    fn completion(&self) -> Wc {
        let mut found = None;
        while self.cq.poll(1, |wc| found = Some(wc)) == 0 {
            rustix::thread::sched_yield();
        }
        found.expect("a poll that returns 1 calls the closure")
    }
}

/// The numbers that one end needs of the other.
struct Peer {
    qpn: u32,
    gid: [u8; 16],
    addr: u64,
    rkey: u32,
}

impl std::str::FromStr for Peer {
    type Err = Box<dyn Error>;

    fn from_str(line: &str) -> Result<Peer> {
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or("a number is missing");
        Ok(Peer {
            qpn: word()?.parse()?,
            gid: word()?.parse::<u128>()?.to_be_bytes(),
            addr: word()?.parse()?,
            rkey: word()?.parse()?,
        })
    }
}
