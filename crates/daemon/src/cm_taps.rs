//! Captures of the connection manager's packets, which ferroced sends and receives itself.
//!
//! Each capture has one ring for each link. Messages carry private data of programs of all users,
//! so only root and the user of ferroced may capture them.

use ferroce_control::{LinkInfo, Process, Reply};
use ferroce_net::Incoming;
use ferroce_trace::{Direction, Record, RingWriter};
use rustix::time::{ClockId, clock_gettime};

use crate::captures::{ends, filter_of};
use crate::client::ClientId;
use crate::qp1::{HOP_LIMIT, QPN, SentMad};
use crate::server::Server;

/// The name of ferroced in captures.
const PROGRAM: &str = "ferroced";

/// The rings of captures.
#[derive(Debug, Default)]
pub(crate) struct CmTaps(Vec<CmTap>);

#[derive(Debug)]
struct CmTap {
    /// Index of the link.
    link: u32,
    ring: RingWriter,
}

impl CmTaps {
    /// Writes a packet that was sent on a link, or that a fault has lost. The text tells what a
    /// fault did to it.
    pub(crate) fn sent(&mut self, link: u32, sent: &SentMad, text: &str) {
        let record = Record {
            direction: Direction::Sent,
            trouble: !text.is_empty(),
            source: sent.flow.source,
            destination: sent.flow.destination,
            source_port: sent.flow.source_port,
            hop_limit: HOP_LIMIT,
            bytes: &sent.packet,
            text,
            ..Record::default()
        };
        self.write(link, record);
    }

    /// Writes a packet that a link has received. The text is empty if it was accepted.
    pub(crate) fn received(&mut self, link: u32, incoming: &Incoming<'_>, text: &str) {
        let record = Record {
            direction: Direction::Received,
            trouble: !text.is_empty(),
            source: incoming.source,
            destination: incoming.destination,
            source_port: incoming.source_port,
            traffic_class: incoming.traffic_class,
            hop_limit: incoming.hop_limit,
            bytes: incoming.payload,
            text,
            ..Record::default()
        };
        self.write(link, record);
    }

    fn write(&mut self, link: u32, record: Record<'_>) {
        if self.0.is_empty() {
            return;
        }
        let time = clock_gettime(ClockId::Monotonic);
        let time_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        self.0.retain(|tap| !tap.ring.is_closed());
        for tap in self.0.iter_mut().filter(|tap| tap.link == link) {
            let filter = tap.ring.filter();
            if filter.qpn.is_some_and(|only| only != QPN) {
                continue;
            }
            let snap = record.bytes.len().min(filter.snap as usize);
            tap.ring.write(&Record {
                time_ns,
                qpn: QPN,
                length: record.bytes.len() as u32,
                bytes: &record.bytes[..snap],
                ..record
            });
        }
    }
}

impl Server {
    /// Captures the connection manager's packets on a link for a client, if the client wants them
    /// and may have them.
    pub(crate) fn capture_cm(&mut self, capture: ClientId, link: &LinkInfo) {
        let Some(client) = self.clients.get(&capture) else {
            return;
        };
        let Some(options) = &client.capture else {
            return;
        };
        let pid = std::process::id();
        let wanted = options.link.as_ref().is_none_or(|only| *only == link.name)
            && options.pid.is_none_or(|only| only == pid)
            && (options.program.as_ref()).is_none_or(|only| only == PROGRAM)
            && !link.is_iwarp();
        if !wanted || !self.access.is_admin(client.peer) {
            return;
        }
        let filter = filter_of(options);
        let source = Reply::Captured {
            link: link.name.clone(),
            process: Process {
                pid,
                program: PROGRAM.into(),
                slots: vec![0],
            },
        };
        let ring = ends(filter).and_then(|[mine, theirs]| {
            let [file, socket] = mine;
            Ok((RingWriter::new(file, socket)?, theirs))
        });
        match ring {
            Ok((ring, theirs)) => {
                let link = link.index;
                self.cm_taps.0.push(CmTap { link, ring });
                self.send_event(capture, &source, theirs.into());
            }
            Err(error) => tracing::warn!(%error, "cannot capture the connection manager"),
        }
    }
}
