//! What may happen to a piece of memory.
//!
//! Each piece of memory that a work request names is a slot of its own, and no
//! two slots overlap. So what the adapter may do to a byte is known exactly, at
//! the moment that it does something.

use std::collections::BTreeMap;
use std::rc::Rc;

/// A piece of memory and what it is for.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Bytes.
    pub(crate) len: u64,
    /// The work request it belongs to.
    pub(crate) wr_id: u64,
    /// What may happen to it.
    pub(crate) rule: Rule,
    /// Bytes written so far, counted from its start.
    pub(crate) filled: u64,
}

/// What may happen to a slot.
#[derive(Debug)]
pub(crate) enum Rule {
    /// Data to be sent: the adapter may read it until the request completes.
    Source,
    /// Data for the peer to read. A late duplicate may be answered from it at any time.
    Shown,
    /// Bytes of a known message land here.
    Landing {
        /// The message.
        data: Rc<[u8]>,
        /// The offset in the message of the slot's first byte.
        at: usize,
        /// Each byte is written exactly once, first to last.
        once: bool,
    },
    /// A receive buffer: which message lands here shows when it completes.
    Buffer,
    /// Eight bytes for atomics; operations by their unique operand.
    Counter(BTreeMap<u64, Atomic>),
    /// Nothing may happen any more.
    Closed,
}

/// An atomic operation that may be executed.
#[derive(Clone, Debug)]
pub(crate) struct Atomic {
    /// The work request.
    pub(crate) wr_id: u64,
    /// What COMPARE_SWAP compares with; `None` for FETCH_ADD.
    pub(crate) compare: Option<u64>,
    /// What was there when it was executed.
    pub(crate) original: Option<u64>,
    /// It must not be executed any more.
    pub(crate) closed: bool,
}

impl Slot {
    /// Judges a write of `data` at `offset`, which fits the slot.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), String> {
        match &self.rule {
            Rule::Buffer => {}
            Rule::Landing {
                data: message,
                at,
                once,
            } => {
                if *once && offset != self.filled {
                    return Err(format!(
                        "written at offset {offset} when the next byte to come is {}",
                        self.filled
                    ));
                }
                let start = at + offset as usize;
                if message[start..start + data.len()] != *data {
                    let wrong = message[start..].iter().zip(data).position(|(a, b)| a != b);
                    return Err(format!(
                        "wrong data: {} bytes for offset {start} of the message, \
                         the first wrong one is number {}",
                        data.len(),
                        wrong.unwrap_or(0)
                    ));
                }
            }
            Rule::Source => return Err("written to, but it is data to be sent".into()),
            Rule::Shown => return Err("written to, but it is only to be read".into()),
            Rule::Counter(_) => return Err("written to, but it is for atomics".into()),
            Rule::Closed => return Err("written to after it was given back".into()),
        }
        self.filled = self.filled.max(offset + data.len() as u64);
        Ok(())
    }

    /// Judges an atomic: `compare` is `None` for FETCH_ADD.
    pub(crate) fn atomic(
        &mut self,
        operand: u64,
        compare: Option<u64>,
        original: u64,
    ) -> Result<(), String> {
        let Rule::Counter(ops) = &mut self.rule else {
            return Err("an atomic on memory that is not for atomics".into());
        };
        let Some(op) = ops.get_mut(&operand) else {
            return Err(format!(
                "an atomic with operand {operand:#x} that nobody posted"
            ));
        };
        let wr = wr_name(op.wr_id);
        if op.compare != compare {
            return Err(format!(
                "{wr} executed with comparand {compare:x?}, not {:x?}",
                op.compare
            ));
        }
        if op.closed {
            return Err(format!("{wr} executed after its queue pair was gone"));
        }
        if op.original.is_some() {
            return Err(format!("{wr} executed twice"));
        }
        op.original = Some(original);
        Ok(())
    }
}

const SEND: u64 = 1 << 32;
const RECV: u64 = 2 << 32;

/// The `wr_id` of a send, by its number in the run.
pub(crate) fn send_wr_id(index: usize) -> u64 {
    SEND | index as u64
}

/// The `wr_id` of a receive, by its number in the run.
pub(crate) fn recv_wr_id(index: usize) -> u64 {
    RECV | index as u64
}

/// Which work request a `wr_id` names.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum WrRef {
    Send(usize),
    Recv(usize),
    Unknown,
}

impl WrRef {
    pub(crate) fn of(wr_id: u64) -> WrRef {
        let index = wr_id as u32 as usize;
        match wr_id >> 32 << 32 {
            SEND => WrRef::Send(index),
            RECV => WrRef::Recv(index),
            _ => WrRef::Unknown,
        }
    }
}

/// A work request as the log names it.
pub(crate) fn wr_name(wr_id: u64) -> String {
    match WrRef::of(wr_id) {
        WrRef::Send(index) => format!("send {index}"),
        WrRef::Recv(index) => format!("recv {index}"),
        WrRef::Unknown => format!("wr {wr_id:#x}"),
    }
}
