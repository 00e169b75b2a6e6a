//! The two directions of a connected stream: its books, kept in step with a queue pair.

use core::ffi::c_int;
use std::sync::Arc;

use crate::ffi::*;

use super::buffer::Buffer;
use super::flow::{CONTROL_MESSAGES, Chunk, Incoming, Misbehaved, Outgoing, Pieces};
use super::id::Id;
use super::queue::{Queue, Sizes};
use super::wire::{
    ByteOrder, Control, Greeting, IOMAP_LEN, IomapEntry, Message, REGION_LEN, Region,
};

/// What a connection is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) queues: Sizes,
    pub(crate) receive_buffer: u32,
    pub(crate) send_buffer: u32,
    pub(crate) iomaps: u32,
}

/// A queue pair and its memory; the peer is not known yet.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) queue: Queue,
    /// What the peer writes the stream to.
    pub(crate) receive: Arc<Buffer>,
    /// What waits here until it has arrived.
    pub(crate) send: Arc<Buffer>,
    /// Where the peer announces its buffers, and behind them its iomaps.
    targets: Buffer,
    plan: Plan,
    peer: Option<Peer>,
}

#[derive(Debug)]
struct Peer {
    greeting: Greeting,
    outgoing: Outgoing,
    incoming: Incoming,
    /// The entry of `targets` that comes next.
    target: u32,
}

/// What completions said about the connection as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct News {
    /// Something was completed at all.
    pub(crate) any: bool,
    /// The peer sends no more.
    pub(crate) shut: bool,
    /// The peer sends and receives no more.
    pub(crate) gone: bool,
    /// It broke.
    pub(crate) broken: Option<c_int>,
}

/// How many buffers a peer can announce at a time.
const TARGETS: u32 = 2;

/// Kinds of work requests, in the upper half of their numbers. In the lower half is how
/// many bytes they have in the ring.
const RECEIVE: u64 = 1 << 32;
const STREAM: u64 = 2 << 32;
const CONTROL: u64 = 3 << 32;

impl Connection {
    pub(crate) fn new(id: &Id, mut plan: Plan) -> Result<Connection, c_int> {
        // Announcements of buffers and iomaps are always inline.
        plan.queues.inline = plan.queues.inline.max(IOMAP_LEN as u32);
        let mut queue = Queue::new(id, IBV_QPT_RC, plan.queues)?;
        let (pd, remote) = (id.pd(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        let table = TARGETS as usize * REGION_LEN + plan.iomaps as usize * IOMAP_LEN;
        let receive = Arc::new(Buffer::new(pd, plan.receive_buffer as usize, remote)?);
        let send = Buffer::new(pd, plan.send_buffer as usize, IBV_ACCESS_LOCAL_WRITE)?;
        let targets = Buffer::new(pd, table, remote)?;
        queue.receive_nothing(queue.sizes.receive as usize, RECEIVE)?;
        Ok(Connection {
            queue,
            receive,
            send: Arc::new(send),
            targets,
            plan,
            peer: None,
        })
    }

    /// What to tell the peer.
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

    /// The peer is known.
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

    /// Work requests for data; some are left for control messages.
    fn slots(&self) -> u32 {
        self.queue
            .sizes
            .send
            .saturating_sub(CONTROL_MESSAGES)
            .max(1)
    }

    pub(crate) fn unread(&self) -> u32 {
        self.peer.as_ref().map_or(0, |peer| peer.incoming.unread())
    }

    pub(crate) fn writable(&self) -> bool {
        self.peer
            .as_ref()
            .is_some_and(|peer| peer.outgoing.writable())
    }

    /// Whether everything that was sent has arrived.
    pub(crate) fn idle(&self) -> bool {
        let slots = self.slots();
        self.peer
            .as_ref()
            .is_none_or(|peer| peer.outgoing.idle(slots))
    }

    pub(crate) fn readable(&self, want: u32) -> Option<Pieces> {
        let peer = self.peer.as_ref()?;
        (peer.incoming.unread() > 0).then(|| peer.incoming.readable(want))
    }

    /// Bytes were read; the peer gets room for more, if it still wants it.
    pub(crate) fn consume(&mut self, length: u32, open: bool) -> Result<(), c_int> {
        if let Some(peer) = &mut self.peer {
            peer.incoming.consume(length);
        }
        if open { self.give_credits() } else { Ok(()) }
    }

    /// What of `want` bytes could be sent now.
    pub(crate) fn chunk(&self, want: u32) -> Option<Chunk> {
        self.peer.as_ref()?.outgoing.chunk(want)
    }

    /// Sends a chunk that lies in the ring.
    pub(crate) fn send_chunk(&mut self, chunk: &Chunk) -> Result<(), c_int> {
        let mut parts = [self.send.sge(0, 0); 2];
        let mut count = 0;
        for (offset, length) in chunk.pieces.iter() {
            parts[count] = self.send.sge(offset, length);
            count += 1;
        }
        self.send_parts(chunk, &mut parts[..count], false)
    }

    /// Sends a chunk that lies in the program's memory, inline.
    pub(crate) fn send_inline(&mut self, chunk: &Chunk, from: *const u8) -> Result<(), c_int> {
        let part = ibv_sge {
            addr: from.expose_provenance() as u64,
            length: chunk.length,
            lkey: 0,
        };
        self.send_parts(chunk, &mut [part], true)
    }

    fn send_parts(
        &mut self,
        chunk: &Chunk,
        parts: &mut [ibv_sge],
        inline: bool,
    ) -> Result<(), c_int> {
        let Some(peer) = &mut self.peer else {
            return Err(libc::ENOTCONN);
        };
        let kept = if inline { 0 } else { chunk.length };
        let message = Message::Data(chunk.length).encode();
        let remote = (chunk.remote.addr, chunk.remote.key);
        self.queue.write(
            parts,
            inline,
            remote,
            Some(message),
            STREAM | u64::from(kept),
        )?;
        peer.outgoing.posted(chunk, kept);
        Ok(())
    }

    /// Room in the ring for up to `want` bytes that go to an iomap.
    pub(crate) fn room(&self, want: u32) -> Option<Pieces> {
        self.peer.as_ref()?.outgoing.room(want)
    }

    /// Writes bytes of the ring to an iomap.
    pub(crate) fn write_direct(&mut self, pieces: &Pieces, to: (u64, u32)) -> Result<(), c_int> {
        let Some(peer) = &mut self.peer else {
            return Err(libc::ENOTCONN);
        };
        let mut parts = [self.send.sge(0, 0); 2];
        let mut count = 0;
        for (offset, length) in pieces.iter() {
            parts[count] = self.send.sge(offset, length);
            count += 1;
        }
        let kept = pieces.total();
        let number = STREAM | u64::from(kept);
        self.queue
            .write(&mut parts[..count], false, to, None, number)?;
        peer.outgoing.posted_direct(kept);
        Ok(())
    }

    /// The peer's memory behind an offset: address, key, and how many bytes.
    pub(crate) fn find_iomap(&self, offset: u64) -> Option<(u64, u32, u32)> {
        let peer = self.peer.as_ref()?;
        (0..self.plan.iomaps as usize).find_map(|index| {
            let at = TARGETS as usize * REGION_LEN + index * IOMAP_LEN;
            // The peer writes in our byte order only if it has another one: it is told so.
            let entry = IomapEntry::decode(&self.targets.read(at), peer.memory_order());
            let (addr, length) = entry.find(offset)?;
            Some((addr, entry.region.key, length))
        })
    }

    /// How many iomaps the peer has room for.
    pub(crate) fn peer_iomaps(&self) -> u32 {
        let greeting = self.peer.as_ref().map(|peer| peer.greeting);
        greeting.and_then(|greeting| greeting.iomaps).unwrap_or(0)
    }

    /// Tells the peer of an iomap, if there is room for that now.
    pub(crate) fn announce(&mut self, index: u32, entry: &IomapEntry) -> Result<bool, c_int> {
        let Some(peer) = &mut self.peer else {
            return Err(libc::ENOTCONN);
        };
        if !peer.outgoing.can_announce() {
            return Ok(false);
        }
        let table = peer.greeting.targets;
        let at = u64::from(table.length) * REGION_LEN as u64 + u64::from(index) * IOMAP_LEN as u64;
        let bytes = entry.encode(peer.peer_order());
        let message = Message::Iomap(index as u16).encode();
        let to = (table.addr.wrapping_add(at), table.key);
        self.queue
            .write(&mut [bytes_of(&bytes)], true, to, Some(message), STREAM)?;
        peer.outgoing.announced();
        Ok(true)
    }

    /// Sends a control message, if there is room for one now.
    pub(crate) fn control(&mut self, control: Control) -> Result<bool, c_int> {
        let Some(peer) = &mut self.peer else {
            return Err(libc::ENOTCONN);
        };
        if !peer.outgoing.can_control() {
            return Ok(false);
        }
        // That the peer lives is said by its acknowledgement; its program need not know.
        let message = (control != Control::Keepalive).then(|| Message::Control(control).encode());
        self.queue.write(&mut [], false, (0, 0), message, CONTROL)?;
        peer.outgoing.control_posted();
        Ok(true)
    }

    /// Looks at completions.
    pub(crate) fn progress(&mut self) -> News {
        let Some(peer) = &mut self.peer else {
            return News::default();
        };
        let mut news = News::default();
        let mut received = 0;
        let targets = &self.targets;
        let count = self.queue.poll(|wc| {
            if wc.status != IBV_WC_SUCCESS {
                peer.failed(wc, &mut news);
            } else if wc.wr_id & !0xffff_ffff == RECEIVE {
                received += 1;
                peer.received(wc, targets, &mut news);
            } else {
                peer.sent(wc);
            }
        });
        news.any = count > 0;
        if news.broken.is_none() && !news.gone {
            let again = self.queue.receive_nothing(received, RECEIVE);
            news.broken = again.and_then(|()| self.give_credits()).err();
        }
        news
    }

    /// Tells the peer what was read, when it is time to.
    fn give_credits(&mut self) -> Result<(), c_int> {
        let Some(peer) = &mut self.peer else {
            return Ok(());
        };
        while peer.incoming.credit_due() && peer.outgoing.can_control() {
            let credit = peer.incoming.grant();
            let message = Some(Message::Credits(credit.limit).encode());
            match credit.region {
                None => self.queue.write(&mut [], false, (0, 0), message, CONTROL)?,
                Some((slot, offset, length)) => {
                    let region = Region {
                        addr: self.receive.addr() + u64::from(offset),
                        key: self.receive.rkey(),
                        length,
                    };
                    let bytes = region.encode(peer.peer_order());
                    let table = peer.greeting.targets;
                    let at = u64::from(slot) * REGION_LEN as u64;
                    let to = (table.addr.wrapping_add(at), table.key);
                    self.queue
                        .write(&mut [bytes_of(&bytes)], true, to, message, CONTROL)?;
                }
            }
            peer.outgoing.control_posted();
        }
        Ok(())
    }
}

fn bytes_of(bytes: &[u8]) -> ibv_sge {
    ibv_sge {
        addr: bytes.as_ptr().expose_provenance() as u64,
        length: bytes.len() as u32,
        lkey: 0,
    }
}

impl Peer {
    /// How numbers lie in the peer's memory: whoever writes there, writes them so.
    fn peer_order(&self) -> ByteOrder {
        self.greeting.order
    }

    /// How numbers lie in ours.
    fn memory_order(&self) -> ByteOrder {
        ByteOrder::NATIVE
    }

    fn received(&mut self, wc: &ibv_wc, targets: &Buffer, news: &mut News) {
        // SAFETY: plain numbers in either case.
        let immediate = u32::from_be(unsafe { wc.imm.imm_data });
        let told = match Message::decode(immediate) {
            Message::Data(length) => self.incoming.arrived(length),
            Message::Iomap(_) => self.incoming.announcement_arrived(),
            Message::Credits(limit) => {
                self.outgoing.granted(limit);
                self.take_target(targets)
            }
            Message::Control(Control::Disconnect) => {
                news.gone = true;
                Ok(())
            }
            Message::Control(Control::Shutdown) => {
                news.shut = true;
                Ok(())
            }
            Message::Control(Control::Keepalive) | Message::Reserved(_) => Ok(()),
        };
        if let Err(Misbehaved(why)) = told {
            tracing::warn!("the peer of an rsocket does not keep to the protocol: {why}");
            news.broken = Some(libc::EPROTO);
        }
    }

    /// Looks whether the peer has announced a buffer.
    fn take_target(&mut self, targets: &Buffer) -> Result<(), Misbehaved> {
        let at = self.target as usize * REGION_LEN;
        let region = Region::decode(&targets.read(at), self.memory_order());
        if region.length == 0 {
            return Ok(());
        }
        targets.write(at, &[0; REGION_LEN]);
        self.target = (self.target + 1) % TARGETS;
        self.outgoing.offered(region)
    }

    fn sent(&mut self, wc: &ibv_wc) {
        if wc.wr_id & !0xffff_ffff == CONTROL {
            self.outgoing.control_completed();
        } else {
            self.outgoing.completed(wc.wr_id as u32);
        }
    }

    fn failed(&mut self, wc: &ibv_wc, news: &mut News) {
        let errno = match wc.status {
            IBV_WC_RETRY_EXC_ERR | IBV_WC_RNR_RETRY_EXC_ERR => libc::ETIMEDOUT,
            _ => libc::ECONNRESET,
        };
        // The first says why; the others were only flushed.
        news.broken.get_or_insert(errno);
    }
}
