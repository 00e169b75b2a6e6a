//! A connected stream's queue pair and buffers, with the flow control of both directions.

use std::sync::Arc;

use ferroce_device::Buffer;
use ferroce_device::transport::{Access, SendData, Sge, Wc, WcStatus};

use crate::cm::Id;
use crate::flow::{CONTROL_MESSAGES, Chunk, Incoming, Outgoing, Pieces, ProtocolViolation};
use crate::queue::{HALF, Queue, Sizes};
use crate::wire::{
    ByteOrder, Control, Greeting, IOMAP_LEN, IomapEntry, Message, REGION_LEN, Region,
};
use crate::{Errno, Result, error};

/// The sizes of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) queues: Sizes,
    /// Bytes of the receive ring.
    pub(crate) receive_buffer: u32,
    /// Bytes of the send ring.
    pub(crate) send_buffer: u32,
    /// Number of iomaps that the peer may announce.
    pub(crate) iomaps: u32,
}

/// A queue pair and its memory. The peer is unknown until its greeting arrives.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) queue: Queue,
    /// The receive ring, to which the peer writes the stream.
    pub(crate) receive: Arc<Buffer>,
    /// The send ring, which holds bytes until they are acknowledged.
    pub(crate) send: Arc<Buffer>,
    /// The table to which the peer publishes its receive buffers, and after them its iomaps.
    targets: Buffer,
    plan: Plan,
    peer: Option<Peer>,
}

#[derive(Debug)]
struct Peer {
    greeting: Greeting,
    outgoing: Outgoing,
    incoming: Incoming,
    /// The entry of `targets` that the peer writes next.
    target: u32,
}

/// Changes of a connection's state that completions reported.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnChanges {
    /// At least one work request completed.
    pub(crate) any: bool,
    /// The peer sends no more data.
    pub(crate) shut: bool,
    /// The peer ended both directions.
    pub(crate) gone: bool,
    /// The connection failed.
    pub(crate) broken: Option<Errno>,
}

/// Number of receive buffers that the peer can publish at a time.
const TARGETS: u32 = 2;

/// Kinds of work requests, in the upper half of `wr_id`. The lower half is the number of
/// bytes that the work request keeps in the send ring.
const RECEIVE: u64 = 1 << 32;
const STREAM: u64 = 2 << 32;
const CONTROL: u64 = 3 << 32;

impl Connection {
    /// Creates the queue pair of an id, and its buffers.
    pub(crate) fn new(id: &Id, mut plan: Plan) -> Result<Connection> {
        // Announcements of buffers and iomaps are always inline.
        plan.queues.inline = plan.queues.inline.max(IOMAP_LEN as u32);
        let mut queue = Queue::new(id, plan.queues)?;
        let (device, pd) = queue.device();
        let (local, remote) = (
            Access::LOCAL_WRITE,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        );
        let buffer =
            |length, access| Buffer::new(device, pd, length, access).map_err(error::of_verbs);
        let table = TARGETS as usize * REGION_LEN + plan.iomaps as usize * IOMAP_LEN;
        let receive = buffer(plan.receive_buffer as usize, remote)?;
        let send = buffer(plan.send_buffer as usize, local)?;
        let targets = buffer(table, remote)?;
        queue.post_first_receives(RECEIVE)?;
        Ok(Connection {
            queue,
            receive: Arc::new(receive),
            send: Arc::new(send),
            targets,
            plan,
            peer: None,
        })
    }

    /// Returns the greeting for the peer.
    pub(crate) fn greeting(&self) -> Greeting {
        Greeting {
            order: ByteOrder::NATIVE,
            credits: self.queue.sizes.receive as u16,
            iomaps: Some(self.plan.iomaps),
            targets: Region {
                addr: self.targets.addr(),
                key: self.targets.rkey(),
                length: TARGETS,
            },
            buffer: Region {
                addr: self.receive.addr(),
                key: self.receive.rkey(),
                length: self.plan.receive_buffer / 2,
            },
        }
    }

    /// Starts flow control with the peer's greeting.
    pub(crate) fn begin(&mut self, greeting: Greeting) {
        let slots = self.slots();
        let Plan {
            send_buffer,
            receive_buffer,
            ..
        } = self.plan;
        let capacity = self.queue.sizes.receive as u16;
        self.peer = Some(Peer {
            greeting,
            outgoing: Outgoing::new(send_buffer, slots, greeting.credits, greeting.buffer),
            incoming: Incoming::new(receive_buffer, capacity, greeting.targets.length),
            target: 1,
        });
    }

    /// Returns the number of work requests for data. The rest of the send queue is for
    /// control messages.
    fn slots(&self) -> u32 {
        self.queue
            .sizes
            .send
            .saturating_sub(CONTROL_MESSAGES)
            .max(1)
    }

    /// Returns the number of received bytes that are not read.
    pub(crate) fn unread(&self) -> u32 {
        self.peer.as_ref().map_or(0, |peer| peer.incoming.unread())
    }

    /// True if data can be sent.
    pub(crate) fn writable(&self) -> bool {
        self.peer
            .as_ref()
            .is_some_and(|peer| peer.outgoing.writable())
    }

    /// True if everything that was sent is acknowledged.
    pub(crate) fn idle(&self) -> bool {
        let slots = self.slots();
        self.peer
            .as_ref()
            .is_none_or(|peer| peer.outgoing.idle(slots))
    }

    /// Returns the place of up to `want` unread bytes in the receive ring, if there are any.
    pub(crate) fn readable(&self, want: u32) -> Option<Pieces> {
        let peer = self.peer.as_ref()?;
        (peer.incoming.unread() > 0).then(|| peer.incoming.readable(want))
    }

    /// Counts bytes as read. Sends credits if the connection `is_open`.
    pub(crate) fn consume(&mut self, length: u32, is_open: bool) -> Result<()> {
        if let Some(peer) = &mut self.peer {
            peer.incoming.consume(length);
        }
        if is_open { self.send_credits() } else { Ok(()) }
    }

    /// Returns the part of `want` bytes that may be sent now.
    pub(crate) fn chunk(&self, want: u32) -> Option<Chunk> {
        self.peer.as_ref()?.outgoing.chunk(want)
    }

    /// Sends a chunk whose bytes are in the send ring.
    pub(crate) fn send_chunk(&mut self, chunk: &Chunk) -> Result<()> {
        let (parts, count) = self.parts(&chunk.pieces);
        self.post_chunk(chunk, SendData::Sges(&parts[..count]), chunk.length)
    }

    /// Sends a chunk inline.
    pub(crate) fn send_inline(&mut self, chunk: &Chunk, bytes: &[u8]) -> Result<()> {
        self.post_chunk(chunk, SendData::Inline(bytes), 0)
    }

    fn post_chunk(&mut self, chunk: &Chunk, data: SendData<'_>, kept: u32) -> Result<()> {
        let peer = self.peer.as_mut().ok_or(Errno::NOTCONN)?;
        let message = Message::Data(chunk.length).encode();
        let to = (chunk.remote.addr, chunk.remote.key);
        self.queue
            .write(data, to, Some(message), STREAM | u64::from(kept))?;
        peer.outgoing.posted(chunk, kept);
        Ok(())
    }

    /// Returns the scatter/gather elements of a range of the send ring, and their number.
    fn parts(&self, pieces: &Pieces) -> ([Sge; 2], usize) {
        let mut parts = [self.send.sge(0, 0); 2];
        let mut count = 0;
        for (offset, length) in pieces.iter() {
            parts[count] = self.send.sge(offset as usize, length);
            count += 1;
        }
        (parts, count)
    }

    /// Returns room in the send ring for up to `want` bytes of a WRITE to an iomap.
    pub(crate) fn room(&self, want: u32) -> Option<Pieces> {
        self.peer.as_ref()?.outgoing.room(want)
    }

    /// Writes a range of the send ring to an iomap.
    pub(crate) fn write_direct(&mut self, pieces: &Pieces, to: (u64, u32)) -> Result<()> {
        let (parts, count) = self.parts(pieces);
        let peer = self.peer.as_mut().ok_or(Errno::NOTCONN)?;
        let kept = pieces.total();
        let data = SendData::Sges(&parts[..count]);
        self.queue.write(data, to, None, STREAM | u64::from(kept))?;
        peer.outgoing.posted_direct(kept);
        Ok(())
    }

    /// Finds an offset in the peer's iomaps: address, key, and number of bytes that follow.
    pub(crate) fn find_iomap(&self, offset: u64) -> Option<(u64, u32, u32)> {
        self.peer.as_ref()?;
        (0..self.plan.iomaps as usize).find_map(|index| {
            let at = TARGETS as usize * REGION_LEN + index * IOMAP_LEN;
            let mut bytes = [0; IOMAP_LEN];
            self.targets.read(at, &mut bytes);
            // The peer writes to our table in our byte order.
            let entry = IomapEntry::decode(&bytes, ByteOrder::NATIVE);
            let (addr, length) = entry.find(offset)?;
            Some((addr, entry.region.key, length))
        })
    }

    /// Returns the number of iomaps that the peer has room for.
    pub(crate) fn peer_iomaps(&self) -> u32 {
        let greeting = self.peer.as_ref().map(|peer| peer.greeting);
        greeting.and_then(|greeting| greeting.iomaps).unwrap_or(0)
    }

    /// Announces an iomap to the peer; false if there is no credit or slot for it now.
    pub(crate) fn announce(&mut self, index: u32, entry: &IomapEntry) -> Result<bool> {
        let peer = self.peer.as_mut().ok_or(Errno::NOTCONN)?;
        if !peer.outgoing.can_announce() {
            return Ok(false);
        }
        let table = peer.greeting.targets;
        let at = u64::from(table.length) * REGION_LEN as u64 + u64::from(index) * IOMAP_LEN as u64;
        let bytes = entry.encode(peer.greeting.order);
        let message = Message::Iomap(index as u16).encode();
        let to = (table.addr.wrapping_add(at), table.key);
        self.queue
            .write(SendData::Inline(&bytes), to, Some(message), STREAM)?;
        peer.outgoing.announced();
        Ok(true)
    }

    /// Sends a control message; false if there is no slot for it now.
    pub(crate) fn control(&mut self, control: Control) -> Result<bool> {
        let peer = self.peer.as_mut().ok_or(Errno::NOTCONN)?;
        if !peer.outgoing.can_control() {
            return Ok(false);
        }
        // The ACK shows that the peer is alive, so a keepalive has no immediate data.
        let message = (control != Control::Keepalive).then(|| Message::Control(control).encode());
        self.queue
            .write(SendData::Sges(&[]), (0, 0), message, CONTROL)?;
        peer.outgoing.control_posted();
        Ok(true)
    }

    /// Takes completions.
    pub(crate) fn progress(&mut self) -> ConnChanges {
        let Some(peer) = &mut self.peer else {
            return ConnChanges::default();
        };
        let mut changes = ConnChanges::default();
        let mut received = 0;
        let (mut taken, has_numbers) = (Vec::new(), self.queue.has_messages());
        let targets = &self.targets;
        let count = self.queue.poll(|wc, message| {
            if wc.status != WcStatus::Success {
                peer.failed(wc, &mut changes);
            } else if wc.wr_id & !0xffff_ffff == RECEIVE {
                received += 1;
                if has_numbers {
                    taken.push(wc.wr_id);
                }
                peer.received(message(), targets, &mut changes);
            } else if wc.wr_id != HALF {
                peer.sent(wc);
            }
        });
        changes.any = count > 0;
        if changes.broken.is_none() && !changes.gone {
            let posted = match has_numbers {
                true => self.queue.post_receives_again(&taken),
                false => self.queue.post_empty_receives(received, RECEIVE),
            };
            changes.broken = posted.and_then(|()| self.send_credits()).err();
        }
        changes
    }

    /// Sends credits as far as they are due.
    fn send_credits(&mut self) -> Result<()> {
        let Some(peer) = &mut self.peer else {
            return Ok(());
        };
        while peer.incoming.credit_due() && peer.outgoing.can_control() {
            let credit = peer.incoming.grant();
            let message = Some(Message::Credits(credit.limit).encode());
            match credit.region {
                None => self
                    .queue
                    .write(SendData::Sges(&[]), (0, 0), message, CONTROL)?,
                Some((slot, offset, length)) => {
                    let region = Region {
                        addr: self.receive.addr() + u64::from(offset),
                        key: self.receive.rkey(),
                        length,
                    };
                    let bytes = region.encode(peer.greeting.order);
                    let table = peer.greeting.targets;
                    let at = u64::from(slot) * REGION_LEN as u64;
                    let to = (table.addr.wrapping_add(at), table.key);
                    self.queue
                        .write(SendData::Inline(&bytes), to, message, CONTROL)?;
                }
            }
            peer.outgoing.control_posted();
        }
        Ok(())
    }
}

impl Peer {
    fn received(&mut self, message: u32, targets: &Buffer, changes: &mut ConnChanges) {
        let counted = match Message::decode(message) {
            Message::Data(length) => self.incoming.arrived(length),
            Message::Iomap(_) => self.incoming.announcement_arrived(),
            Message::Credits(limit) => {
                self.outgoing.granted(limit);
                self.take_target(targets)
            }
            Message::Control(Control::Disconnect) => {
                changes.gone = true;
                Ok(())
            }
            Message::Control(Control::Shutdown) => {
                changes.shut = true;
                Ok(())
            }
            Message::Control(Control::Keepalive) | Message::Reserved(_) => Ok(()),
        };
        if let Err(ProtocolViolation(why)) = counted {
            tracing::warn!("the peer of an rsocket violates the protocol: {why}");
            changes.broken = Some(Errno::PROTO);
        }
    }

    /// Takes a receive buffer off the table, if the peer has published one.
    fn take_target(&mut self, targets: &Buffer) -> core::result::Result<(), ProtocolViolation> {
        let at = self.target as usize * REGION_LEN;
        let mut bytes = [0; REGION_LEN];
        targets.read(at, &mut bytes);
        let region = Region::decode(&bytes, ByteOrder::NATIVE);
        if region.length == 0 {
            return Ok(());
        }
        targets.write(at, &[0; REGION_LEN]);
        self.target = (self.target + 1) % TARGETS;
        self.outgoing.offered(region)
    }

    fn sent(&mut self, wc: &Wc) {
        if wc.wr_id & !0xffff_ffff == CONTROL {
            self.outgoing.control_completed();
        } else {
            self.outgoing.completed(wc.wr_id as u32);
        }
    }

    fn failed(&mut self, wc: &Wc, changes: &mut ConnChanges) {
        let errno = match wc.status {
            WcStatus::RetryExceeded | WcStatus::RnrRetryExceeded => Errno::TIMEDOUT,
            _ => Errno::CONNRESET,
        };
        // The first failed completion has the cause; the others were flushed.
        changes.broken.get_or_insert(errno);
    }
}
