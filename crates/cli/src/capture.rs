//! `ferroce capture`: shows the packets of running programs, or writes them to a pcapng file.
//!
//! ferroced introduces the programs. Each writes its packets to a ring in shared memory, which
//! this command reads. No root, and no packet socket.

mod blocks;
pub(crate) mod frame;
pub(crate) mod line;
pub(crate) mod pcapng;
mod programs;
mod segment;
pub(crate) mod sources;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;

use anyhow::{Context, Result, bail};
use clap::Args;
use ferroce_control::protocol::CaptureOptions;
use rustix::event::{PollFd, PollFlags, poll};

use crate::arguments::number;
use crate::daemon;
use crate::link::show::link_name;
use line::Lines;
use pcapng::PcapNg;
use programs::Programs;
use sources::{Packet, Sources};

/// Show or record the packets of running programs
#[derive(Debug, Args)]
#[command(
    long_about = "\
Shows the packets that programs send and receive, one line each, or writes them to a pcapng file \
for Wireshark. It needs no root: programs pass their packets on through shared memory, while a \
capture runs. Programs that start later are included. Root captures all programs, others their own.

Packets on a link of type rxe appear as the RoCEv2 packets that they are, with Ethernet, IP and UDP \
headers, one by one even if the kernel sends several at once. The MAC addresses are made from the IP addresses. Comments \
say what Ferroce decided about a packet: a duplicate, a drop and its reason, the cause of a \
retransmission. A packet between two programs of this host appears twice: sent, and received.

On a link of type siw the kernel makes the TCP segments, and programs do not see them. So a capture \
shows segments that are made up from the bytes of the stream: a handshake, the frames of MPA, then one \
segment for each FPDU. In a file each segment appears once. A connection that is older than the \
capture begins with its next whole FPDU. Connections that are rejected are not shown.

Messages of the connection manager (queue pair 1) are those of ferroced: root and the user of ferroced \
see them, under the program name ferroced. A capture goes on if ferroced is restarted.",
    after_long_help = "\
EXAMPLES
    ferroce capture
        packets of all programs, one line each, until Ctrl-C
    ferroce capture rxe0 -w trace.pcapng
        packets on rxe0, for Wireshark and tshark
    ferroce capture -w - | wireshark -k -i -
        live in Wireshark
    ferroce capture --errors --program ib_send_bw
        only packets with trouble: drops, duplicates, NAKs, retransmissions
    ferroce capture --qp 0x10011 --snap 64
        packets of one queue pair, the first 64 bytes of each"
)]
pub(crate) struct CaptureArgs {
    /// Only packets on this link: NAME or NAME/PORT
    link: Option<String>,

    /// Write a pcapng file; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<String>,

    /// Only packets from or to this queue pair
    #[arg(long, value_name = "QPN", value_parser = number)]
    qp: Option<u32>,

    /// Only packets of this process
    #[arg(long)]
    pid: Option<u32>,

    /// Only packets of programs with this name, as in /proc/PID/comm
    #[arg(long, value_name = "NAME", conflicts_with = "pid")]
    program: Option<String>,

    /// Only packets with trouble: dropped, duplicate, retransmitted, NAKs
    #[arg(short, long)]
    errors: bool,

    /// Take at most this many bytes of each packet, from the BTH or behind the TCP header on
    #[arg(short, long, value_name = "BYTES", default_value_t = 65535,
          value_parser = clap::value_parser!(u32).range(12..=65535))]
    snap: u32,

    /// Stop after this number of packets
    #[arg(short, long, value_name = "PACKETS")]
    count: Option<u64>,
}

/// The place that packets go to.
enum Output {
    Lines(Lines),
    PcapNg(PcapNg<Box<dyn Write>>),
}

impl Output {
    /// Shows a packet or a decision. Returns true if it is a packet that was not shown yet.
    fn packet(&mut self, sources: &Sources, packet: &Packet) -> Result<bool> {
        match self {
            Output::Lines(lines) => lines.packet(sources.of(packet), packet),
            Output::PcapNg(file) => file.packet(sources.of(packet), packet),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match self {
            Output::Lines(lines) => lines.flush(),
            Output::PcapNg(file) => file.flush(),
        }
    }
}

impl CaptureArgs {
    pub(crate) fn run(self) -> Result<()> {
        let link = self.link.as_deref().map(link_name).transpose()?;
        let Some(mut connection) = daemon::connect()? else {
            bail!(
                "there is no link: no ferroced runs in this network namespace; \
                 `ferroce link add rxe0 type rxe netdev IF` starts it"
            );
        };
        let signals = ferroce_control::catch_end().context("signals")?;
        let mut output = self.output()?;
        let options = CaptureOptions {
            link: link.map(str::to_owned),
            pid: self.pid,
            program: self.program.clone(),
            qpn: self.qp,
            snap: self.snap,
        };
        connection.capture(options.clone())?;
        let mut programs = Programs::new(connection, options);
        eprintln!("capturing; Ctrl-C ends");
        let mut sources = Sources::default();
        let mut taken = 0;
        let ended = loop {
            programs.introduce(&mut sources)?;
            let packets = sources.take();
            let idle = packets.is_empty();
            let mut result = Ok(());
            for packet in packets {
                if self.errors && !packet.is_trouble() {
                    continue;
                }
                result = output.packet(&sources, &packet).map(|shown| {
                    taken += u64::from(shown);
                });
                if result.is_err() || self.count.is_some_and(|count| taken >= count) {
                    break;
                }
            }
            let written = result.and_then(|()| output.flush());
            if let Err(error) = written {
                // The reader of a pipe has ended, as `head` or Wireshark do.
                match error.downcast_ref::<io::Error>().map(io::Error::kind) {
                    Some(io::ErrorKind::BrokenPipe) => break true,
                    _ => return Err(error),
                }
            }
            if self.count.is_some_and(|count| taken >= count) {
                break true;
            }
            if idle && sources.begin_sleep() {
                let mut fds = vec![PollFd::new(&signals, PollFlags::IN)];
                let news = programs.fds().into_iter();
                fds.extend(news.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
                fds.extend(sources.sockets().map(|fd| PollFd::new(fd, PollFlags::IN)));
                let _interrupted = poll(&mut fds, None);
            }
            if is_readable(&signals) {
                break false;
            }
        };
        // The records that programs wrote before the end, and programs that ferroced introduced
        // just before.
        if !ended {
            programs.introduce(&mut sources)?;
            for packet in sources.take_all() {
                if !self.errors || packet.is_trouble() {
                    taken += u64::from(output.packet(&sources, &packet)?);
                }
            }
            output.flush()?;
        }
        let lost = sources.lost();
        eprintln!("{taken} packets, {lost} lost because this command was too slow");
        Ok(())
    }

    fn output(&self) -> Result<Output> {
        let file: Box<dyn Write> = match self.write.as_deref() {
            None => return Ok(Output::Lines(Lines::new())),
            Some("-") if io::stdout().is_terminal() => {
                bail!(
                    "pcapng is no text: write it to a pipe, as `ferroce capture -w - | tshark -r -`"
                )
            }
            Some("-") => Box::new(BufWriter::with_capacity(1 << 18, io::stdout())),
            Some(path) => {
                let file = File::create(path).with_context(|| format!("cannot write {path}"))?;
                Box::new(BufWriter::with_capacity(1 << 18, file))
            }
        };
        Ok(Output::PcapNg(PcapNg::new(file, self.snap)?))
    }
}

fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let now = rustix::event::Timespec::default();
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}
