//! The faults of streams: FPDUs wait between the socket or ring and the engine, or end the connection.
//!
//! The stage exists only while faults are in force. It takes the bytes that have arrived,
//! and passes on each FPDU when the [`Weather`] says so. So a program delays and stops the bytes
//! that it receives; those that it sends are delayed by the peer, if that has the same faults.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ferroce_faults::{Provoked, Weather};
use ferroce_roce::Time;
use ferroce_shard::{Faults, RECEIVE_BUDGET};
use rustix::event::epoll;

use super::{BUFFER, Observer, StreamCore, StreamDirection, TURN_BYTES, UNIT};

/// Bytes of a stream that wait at most. Then the socket or ring is not read, and the peer has to stop.
const MOST_BYTES: usize = 4 << 20;
/// Bytes of an FPDU in front of its ULPDU, and behind its padding.
const LENGTH: usize = 2;
const CRC: usize = 4;

/// The faults of the streams of a shard.
pub(super) struct StreamFaults {
    weather: Weather,
    streams: BTreeMap<u32, Waiting>,
}

/// The bytes of a stream that wait.
struct Waiting {
    peer: IpAddr,
    /// Bytes that still belong to an FPDU whose beginning the engine has got before the faults.
    begun: usize,
    /// The beginning of an FPDU whose end has not arrived.
    part: Vec<u8>,
    items: VecDeque<(u64, Item)>,
    /// Bytes in `items`.
    bytes: usize,
    /// True if epoll does not watch the socket.
    is_paused: bool,
    /// True if the end of the stream was received.
    has_ended: bool,
}

/// A thing that waits.
enum Item {
    Bytes(Vec<u8>),
    /// The peer has ended the stream.
    End,
    /// The peer has reset the connection.
    Reset,
    /// A fault resets the connection.
    Fault,
}

impl StreamCore {
    /// Puts faults in force, or ends them: all that waits goes on in the next turn.
    pub(crate) fn set_faults(&mut self, faults: Option<&Faults>) {
        let mut streams = match self.faults.take() {
            Some(before) => before.streams,
            None => BTreeMap::new(),
        };
        for waiting in streams.values_mut() {
            for (due, _) in &mut waiting.items {
                *due = 0;
            }
        }
        let weather = match faults {
            Some(faults) => {
                let (plan, counts) = (Arc::clone(&faults.plan), Arc::clone(&faults.counts));
                Weather::for_streams(plan, counts)
            }
            // FPDUs that wait in part keep the stage.
            None if streams.values().any(Waiting::is_busy) => {
                let counts = Arc::<ferroce_faults::LocalCounts>::default();
                Weather::for_streams(Arc::default(), counts)
            }
            None => return,
        };
        self.faults = Some(Box::new(StreamFaults { weather, streams }));
    }

    /// Receives from a socket through the faults.
    #[cold]
    pub(super) fn receive_late(
        &mut self,
        now: Time,
        process: &mut impl Observer,
        qpn: u32,
    ) -> usize {
        let mut total = 0;
        while total < TURN_BYTES {
            let is_full = match self.waiting(qpn) {
                Some((waiting, _)) => waiting.has_ended || waiting.bytes >= MOST_BYTES,
                None => false,
            };
            if is_full {
                self.pause(qpn);
                break;
            }
            if !self.streams.contains_key(&qpn) {
                break;
            }
            // A stream with half of an FPDU's length ends that first.
            let room = match self.waits(qpn) {
                true => BUFFER,
                false => 1,
            };
            let mut buffer = core::mem::take(&mut self.buffer);
            let got = match self.streams.get_mut(&qpn) {
                // SAFETY: there are no places.
                Some(stream) => unsafe { stream.receive(&[], &mut buffer[..room]) },
                None => Err(ErrorKind::WouldBlock.into()),
            };
            match got {
                Ok(0) => self.add_end(now, qpn, Item::End),
                Ok(bytes) => {
                    match self.waits(qpn) {
                        true => self.take_in(now, qpn, &buffer[..bytes]),
                        false => {
                            let bytes = &buffer[..bytes];
                            self.pass(process, qpn, StreamDirection::Received, bytes);
                            self.engine.receive(now, process.memory(), qpn, bytes);
                        }
                    }
                    let is_memory = self.streams.get(&qpn).is_some_and(|s| s.wire.is_memory());
                    self.count_received(is_memory, bytes);
                    total += bytes;
                }
                Err(ref error) if error.kind() == ErrorKind::Interrupted => {}
                Err(ref error) if error.kind() == ErrorKind::WouldBlock => {
                    self.buffer = buffer;
                    break;
                }
                Err(error) => {
                    tracing::debug!("connection of queue pair {qpn:#x}: {error}");
                    self.add_end(now, qpn, Item::Reset);
                }
            }
            self.buffer = buffer;
        }
        if total > 0 {
            self.end_receive(now, process, qpn);
        }
        self.release(now, process);
        match total >= TURN_BYTES {
            true => RECEIVE_BUDGET,
            false => total.div_ceil(UNIT),
        }
    }

    /// Returns true if the bytes of a stream wait: the ends of its FPDUs are known.
    fn waits(&self, qpn: u32) -> bool {
        let faults = self.faults.as_ref();
        faults.is_some_and(|faults| faults.streams.contains_key(&qpn))
    }

    /// Returns the bytes of a stream that wait, and the weather; none if there is no such stream,
    /// or the end of its current FPDU is not known yet.
    fn waiting(&mut self, qpn: u32) -> Option<(&mut Waiting, &mut Weather)> {
        let faults = self.faults.as_mut()?;
        let waiting = match faults.streams.entry(qpn) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let socket = &self.streams.get(&qpn)?.socket;
                let (_, begun) = self.engine.left_of_fpdus(qpn)?;
                entry.insert(Waiting::new(peer_of(socket), begun))
            }
        };
        Some((waiting, &mut faults.weather))
    }

    /// Takes bytes that were received.
    pub(super) fn take_in(&mut self, now: Time, qpn: u32, bytes: &[u8]) {
        let Some((waiting, weather)) = self.waiting(qpn) else {
            return;
        };
        let now = now.as_nanos();
        let (begun, bytes) = bytes.split_at(bytes.len().min(waiting.begun));
        if !begun.is_empty() {
            waiting.begun -= begun.len();
            waiting.add(now, Item::Bytes(begun.to_vec()));
        }
        waiting.part.extend_from_slice(bytes);
        while let Some(fpdu) = waiting.next_fpdu() {
            let fate = weather.judge_fpdu(now, waiting.peer, qpn, &fpdu);
            waiting.add(
                fate.due,
                match fate.is_reset {
                    true => Item::Fault,
                    false => Item::Bytes(fpdu),
                },
            );
        }
    }

    /// Adds the end of a stream.
    fn add_end(&mut self, now: Time, qpn: u32, end: Item) {
        if let Some((waiting, _)) = self.waiting(qpn) {
            // The engine gets a message that was cut off, too.
            let part = core::mem::take(&mut waiting.part);
            waiting.add(now.as_nanos(), Item::Bytes(part));
            waiting.add(now.as_nanos(), end);
            waiting.has_ended = true;
        }
    }

    /// Passes on all that is due, and carries out events.
    pub(super) fn release(&mut self, now: Time, process: &mut impl Observer) {
        loop {
            let Some(faults) = &mut self.faults else {
                return;
            };
            let due = faults.streams.iter_mut().find_map(|(qpn, waiting)| {
                let item = waiting.take_due(now.as_nanos())?;
                Some((*qpn, item))
            });
            let Some((qpn, item)) = due else {
                break;
            };
            if !matches!(item, Item::Bytes(_))
                && let Some(waiting) = faults.streams.get_mut(&qpn)
            {
                waiting.has_ended = false;
            }
            match item {
                Item::Bytes(bytes) => {
                    self.pass(process, qpn, StreamDirection::Received, &bytes);
                    self.engine.receive(now, process.memory(), qpn, &bytes);
                }
                Item::End => {
                    self.engine.end_of_stream(now, qpn);
                    self.tap(process, qpn, |tap, emit| {
                        tap.end(StreamDirection::Received, emit)
                    });
                }
                Item::Reset => {
                    self.tap(process, qpn, |tap, emit| {
                        tap.reset(StreamDirection::Received, emit)
                    });
                    self.engine.reset(now, qpn);
                }
                Item::Fault => self.engine.provoke_reset(now, qpn),
            }
            self.resume(qpn);
        }
        self.provoke_events(now, process);
        let is_over = self.faults.as_ref().is_some_and(|faults| {
            let is_busy = faults.streams.values().any(Waiting::is_busy);
            faults.weather.plan().is_empty() && !is_busy
        });
        if is_over {
            self.faults = None;
        }
    }

    fn provoke_events(&mut self, now: Time, process: &mut impl Observer) {
        let Some(faults) = &mut self.faults else {
            return;
        };
        faults.weather.handle_timeout(now.as_nanos());
        while let Some(event) = faults.weather.poll_event() {
            match event {
                Provoked::QpError(qpn) => self.engine.provoke_failure(now, qpn),
                other => process.provoked(other),
            }
        }
    }

    /// Forgets what waits for a queue pair whose stream has ended.
    pub(super) fn forget_waiting(&mut self, qpn: u32) {
        if let Some(faults) = &mut self.faults {
            faults.streams.remove(&qpn);
        }
    }

    /// Returns the time at which something that waits is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        let faults = self.faults.as_ref()?;
        let items = faults.streams.values();
        let dues = items.filter_map(|waiting| waiting.items.front().map(|(due, _)| *due));
        let dues = dues.filter(|due| *due < u64::MAX);
        let next = dues.chain(faults.weather.next_timeout()).min()?;
        Some(Time::from_nanos(next))
    }

    /// Stops to watch a socket: it is readable, and is not read.
    fn pause(&mut self, qpn: u32) {
        if let (Some(faults), Some(stream)) = (&mut self.faults, self.streams.get(&qpn))
            && let Some(waiting) = faults.streams.get_mut(&qpn)
        {
            // Bytes that arrive later wake a thread once more.
            stream.wire.memory().inspect(|memory| memory.pause(true));
            if !core::mem::replace(&mut waiting.is_paused, true) {
                let _watched = epoll::delete(&self.epoll, &stream.socket);
            }
        }
    }

    /// Watches a socket again.
    fn resume(&mut self, qpn: u32) {
        if let (Some(faults), Some(stream)) = (&mut self.faults, self.streams.get(&qpn))
            && let Some(waiting) = faults.streams.get_mut(&qpn)
            && waiting.bytes < MOST_BYTES
            && !waiting.has_ended
            && core::mem::replace(&mut waiting.is_paused, false)
        {
            stream.wire.memory().inspect(|memory| memory.pause(false));
            let mut events = epoll::EventFlags::IN;
            events.set(epoll::EventFlags::OUT, stream.awaits_room);
            let data = epoll::EventData::new_u64(qpn.into());
            if let Err(error) = epoll::add(&self.epoll, &stream.socket, data, events) {
                tracing::warn!("connection of queue pair {qpn:#x}: epoll: {error}");
            }
        }
    }
}

fn peer_of(socket: &OwnedFd) -> IpAddr {
    let peer = rustix::net::getpeername(socket).ok().flatten();
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| {
        peer.ip().to_canonical()
    })
}

impl Waiting {
    fn new(peer: IpAddr, begun: usize) -> Waiting {
        Waiting {
            peer,
            begun,
            part: Vec::new(),
            items: VecDeque::new(),
            bytes: 0,
            is_paused: false,
            has_ended: false,
        }
    }

    /// Returns true if bytes wait that the engine must get before those of the socket.
    fn is_busy(&self) -> bool {
        !self.items.is_empty() || !self.part.is_empty() || self.has_ended
    }

    /// Takes the first FPDU that is whole.
    fn next_fpdu(&mut self) -> Option<Vec<u8>> {
        let length = u16::from_be_bytes(*self.part.first_chunk()?);
        let total = (LENGTH + usize::from(length)).next_multiple_of(4) + CRC;
        if self.part.len() < total {
            return None;
        }
        let rest = self.part.split_off(total);
        Some(core::mem::replace(&mut self.part, rest))
    }

    /// Adds an item that is due at a time, behind all others.
    fn add(&mut self, due: u64, item: Item) {
        let last = self.items.back().map_or(0, |(due, _)| *due);
        if let Item::Bytes(bytes) = &item {
            self.bytes += bytes.len();
        }
        self.items.push_back((due.max(last), item));
    }

    fn take_due(&mut self, now: u64) -> Option<Item> {
        if self.items.front()?.0 > now {
            return None;
        }
        let (_, item) = self.items.pop_front()?;
        if let Item::Bytes(bytes) = &item {
            self.bytes -= bytes.len();
        }
        Some(item)
    }
}
