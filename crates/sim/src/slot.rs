//! Slots: pieces of memory and the accesses that are allowed to them.
//!
//! Each piece of memory that a work request names is a slot of its own, and no
//! two slots overlap. So the oracle knows for every access to a byte whether it
//! is allowed, at the moment of the access.

use std::collections::BTreeMap;
use std::rc::Rc;

/// A piece of memory and its use.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Length in bytes.
    pub(crate) len: u64,
    /// The work request that names this memory.
    pub(crate) wr_id: u64,
    /// The accesses that are allowed.
    pub(crate) rule: Rule,
    /// End offset of the bytes written so far.
    pub(crate) filled: u64,
}

/// The accesses that are allowed to a slot.
#[derive(Debug)]
pub(crate) enum Rule {
    /// Data to be sent. The adapter may read it until the request completes.
    Source,
    /// Data for the peer to READ. A late duplicate may read it again at any time.
    Shown,
    /// Destination of a known message.
    Landing {
        /// The message.
        data: Rc<[u8]>,
        /// Offset in the message of the slot's first byte.
        at: usize,
        /// Each byte must be written exactly once, in order.
        once: bool,
    },
    /// A receive buffer. Its contents are checked when the receive completes.
    Buffer,
    /// Eight bytes for atomics. Maps the unique operand of each operation to it.
    Counter(BTreeMap<u64, Atomic>),
    /// No access is allowed.
    Closed,
}

/// An expected atomic operation.
#[derive(Clone, Debug)]
pub(crate) struct Atomic {
    /// The work request.
    pub(crate) wr_id: u64,
    /// The comparand of COMPARE_SWAP; `None` for FETCH_ADD.
    pub(crate) compare: Option<u64>,
    /// The value before the operation was executed; `None` until then.
    pub(crate) original: Option<u64>,
    /// The operation must not be executed from now on.
    pub(crate) closed: bool,
}

impl Slot {
    /// Checks a write of `data` at `offset`. The write must lie inside the slot.
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
                        "written at offset {offset}, but the next byte expected is {}",
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

    /// Checks an atomic; `compare` is `None` for FETCH_ADD.
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
                "an atomic with operand {operand:#x}, which no request has"
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

/// Returns the `wr_id` of a send, from its number in the run.
pub(crate) fn send_wr_id(index: usize) -> u64 {
    SEND | index as u64
}

/// Returns the `wr_id` of a receive, from its number in the run.
pub(crate) fn recv_wr_id(index: usize) -> u64 {
    RECV | index as u64
}

/// The work request that a `wr_id` names.
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

/// Returns the name of a work request in the log.
pub(crate) fn wr_name(wr_id: u64) -> String {
    match WrRef::of(wr_id) {
        WrRef::Send(index) => format!("send {index}"),
        WrRef::Recv(index) => format!("recv {index}"),
        WrRef::Unknown => format!("wr {wr_id:#x}"),
    }
}
