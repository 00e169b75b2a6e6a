//! Counts of opcodes, statuses, drops and events. A test checks that every one
//! of them occurs.

use core::fmt;
use std::collections::BTreeMap;

use ferroce_roce::Drop as DropReason;
use ferroce_roce::{QpEvent, WcStatus};
use ferroce_wire::Opcode;

/// Counts of one run or of many.
#[derive(Clone, Debug)]
pub struct Coverage {
    /// Packets sent, by opcode byte.
    opcodes: [u64; 256],
    sends: [u64; 32],
    receives: [u64; 32],
    drops: [u64; 32],
    events: [u64; 32],
    marks: BTreeMap<&'static str, u64>,
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage {
            opcodes: [0; 256],
            sends: [0; 32],
            receives: [0; 32],
            drops: [0; 32],
            events: [0; 32],
            marks: BTreeMap::new(),
        }
    }
}

impl Coverage {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Coverage) {
        let mine = [
            &mut self.opcodes[..],
            &mut self.sends,
            &mut self.receives,
            &mut self.drops,
            &mut self.events,
        ];
        let theirs = [
            &other.opcodes[..],
            &other.sends,
            &other.receives,
            &other.drops,
            &other.events,
        ];
        for (mine, theirs) in mine.into_iter().zip(theirs) {
            mine.iter_mut().zip(theirs).for_each(|(a, b)| *a += b);
        }
        for (&name, count) in &other.marks {
            *self.marks.entry(name).or_default() += count;
        }
    }

    /// Returns the count of a mark.
    pub fn marks(&self, name: &str) -> u64 {
        self.marks.get(name).copied().unwrap_or(0)
    }

    /// Returns the number of packets sent with an opcode.
    pub fn packets(&self, opcode: Opcode) -> u64 {
        self.opcodes[usize::from(opcode.byte())]
    }

    /// Returns the number of sends that completed with a status.
    pub fn sends(&self, status: WcStatus) -> u64 {
        self.sends[status as usize]
    }

    /// Returns the number of receives that completed with a status.
    pub fn receives(&self, status: WcStatus) -> u64 {
        self.receives[status as usize]
    }

    /// Returns the number of packets that an engine dropped for a reason.
    pub fn drops(&self, why: DropReason) -> u64 {
        self.drops[why as usize]
    }

    /// Returns the number of queue pair events of a kind.
    pub fn events(&self, event: QpEvent) -> u64 {
        self.events[event as usize]
    }

    pub(crate) fn sent(&mut self, bytes: &[u8]) {
        self.opcodes[usize::from(bytes[0])] += 1;
    }

    pub(crate) fn completed(&mut self, receive: bool, status: WcStatus) {
        let counts = if receive {
            &mut self.receives
        } else {
            &mut self.sends
        };
        counts[status as usize] += 1;
    }

    pub(crate) fn dropped(&mut self, why: DropReason) {
        self.drops[why as usize] += 1;
    }

    /// Counts a mark. A mark names a situation that scenarios are meant to reach.
    pub(crate) fn mark(&mut self, name: &'static str) {
        *self.marks.entry(name).or_default() += 1;
    }

    pub(crate) fn event(&mut self, event: QpEvent) {
        self.events[event as usize] += 1;
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for opcode in (0..=255).filter_map(Opcode::from_byte) {
            let count = self.packets(opcode);
            if count > 0 {
                writeln!(f, "{count:>12} {opcode}")?;
            }
        }
        for (what, counts) in [("sends", &self.sends), ("receives", &self.receives)] {
            for status in STATUSES {
                let count = counts[*status as usize];
                if count > 0 {
                    writeln!(f, "{count:>12} {what}: {status}")?;
                }
            }
        }
        for why in DROPS {
            writeln!(f, "{:>12} dropped: {why:?}", self.drops(*why))?;
        }
        for event in EVENTS {
            writeln!(f, "{:>12} event: {event:?}", self.events(*event))?;
        }
        for (name, count) in &self.marks {
            writeln!(f, "{count:>12} mark: {name}")?;
        }
        Ok(())
    }
}

/// The statuses that simulated work requests can complete with.
pub const STATUSES: &[WcStatus] = &[
    WcStatus::Success,
    WcStatus::LocalLength,
    WcStatus::LocalQpOperation,
    WcStatus::LocalProtection,
    WcStatus::WrFlush,
    WcStatus::MwBind,
    WcStatus::RemoteInvalidRequest,
    WcStatus::RemoteAccess,
    WcStatus::RemoteOperation,
    WcStatus::RetryExceeded,
    WcStatus::RnrRetryExceeded,
];

/// The reasons for which simulated engines drop packets.
pub const DROPS: &[DropReason] = &[
    DropReason::Malformed,
    DropReason::UnknownQp,
    DropReason::WrongState,
    DropReason::WrongPeer,
    DropReason::BadPkey,
    DropReason::BadQkey,
    DropReason::BadIcrc,
    DropReason::NoReceive,
    DropReason::OutOfSequence,
    DropReason::Stale,
];

/// The events of queue pairs.
pub const EVENTS: &[QpEvent] = &[
    QpEvent::Fatal,
    QpEvent::RequestError,
    QpEvent::AccessError,
    QpEvent::CommunicationEstablished,
    QpEvent::SqDrained,
    QpEvent::LastWqeReached,
];
