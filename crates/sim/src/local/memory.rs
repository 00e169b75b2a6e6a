//! The memory of a ring, and processes that die while they use it.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ferroce_net::local::ring::{ALIGNMENT, RingMemory};

use crate::rng::Rng;

/// Bytes for the records of a ring. Two of the longest runs of the scenarios fit, so that rings
/// are full now and then.
pub(crate) const CAPACITY: usize = 143 * ALIGNMENT;
/// Bytes of the front of a ring. Short packets stay there, and longer runs do not fit.
const FRONT: usize = 32 * ALIGNMENT;

/// A process, which may die at any access to shared memory.
#[derive(Default)]
pub(crate) struct SimProcess {
    /// Number of accesses until the process dies; none if it lives on.
    left: Cell<Option<u64>>,
    is_dead: Cell<bool>,
}

impl SimProcess {
    /// Lets the process die after a number of accesses.
    pub(crate) fn die_after(&self, accesses: u64) {
        self.left.set(Some(accesses));
    }

    /// Returns true if the process will die at one of its next accesses.
    pub(crate) fn is_doomed(&self) -> bool {
        self.left.get().is_some() && !self.is_dead.get()
    }

    pub(crate) fn die(&self) {
        self.is_dead.set(true);
    }

    /// Returns true if the process has died. The call in progress goes on, so that its host stays
    /// consistent, but nothing that it does is seen outside.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.get()
    }

    /// Counts an access. Returns true if the process dies at this one.
    fn access(&self) -> bool {
        match self.left.get() {
            Some(0) if !self.is_dead.get() => {
                self.die();
                true
            }
            Some(left) => {
                self.left.set(Some(left.saturating_sub(1)));
                false
            }
            None => false,
        }
    }
}

/// The bytes that two processes share.
struct Cells {
    tail: AtomicU64,
    head: AtomicU64,
    reader_sleeps: AtomicU32,
    writer_waits: AtomicU32,
    records: RefCell<Box<[u8]>>,
}

impl Cells {
    fn new() -> Cells {
        Cells {
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
            reader_sleeps: AtomicU32::new(0),
            writer_waits: AtomicU32::new(0),
            records: RefCell::new(vec![0; CAPACITY].into()),
        }
    }

    fn copy(&self) -> Cells {
        let number = |from: &AtomicU64| AtomicU64::new(from.load(Ordering::Relaxed));
        let flag = |from: &AtomicU32| AtomicU32::new(from.load(Ordering::Relaxed));
        Cells {
            tail: number(&self.tail),
            head: number(&self.head),
            reader_sleeps: flag(&self.reader_sleeps),
            writer_waits: flag(&self.writer_waits),
            records: self.records.clone(),
        }
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.records.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// A ring as one process sees it.
#[derive(Clone)]
pub(crate) struct SimRing {
    cells: Rc<Cells>,
    view: Rc<View>,
}

/// The private part of a process's view of a ring.
struct View {
    process: Rc<SimProcess>,
    /// The ring as it was when the process died. Its last call goes on here.
    after_death: OnceCell<Cells>,
    /// Positions of a process that has published a wrong one, and keeps the right one to itself.
    tail: OnceCell<AtomicU64>,
    head: OnceCell<AtomicU64>,
    /// Changes records while this process reads them.
    scribbler: Option<RefCell<Rng>>,
}

/// Returns one ring as two processes see it.
pub(crate) fn ring(processes: [&Rc<SimProcess>; 2], scribblers: [Option<Rng>; 2]) -> [SimRing; 2] {
    let cells = Rc::new(Cells::new());
    let [first, second] = scribblers;
    [(processes[0], first), (processes[1], second)].map(|(process, scribbler)| SimRing {
        cells: Rc::clone(&cells),
        view: Rc::new(View {
            process: Rc::clone(process),
            after_death: OnceCell::new(),
            tail: OnceCell::new(),
            head: OnceCell::new(),
            scribbler: scribbler.map(RefCell::new),
        }),
    })
}

impl SimRing {
    /// Counts an access, and returns the memory that it concerns.
    fn access(&self) -> &Cells {
        self.view.process.access();
        self.memory()
    }

    fn memory(&self) -> &Cells {
        match self.view.process.is_dead() {
            true => self.view.after_death.get_or_init(|| self.cells.copy()),
            false => &self.cells,
        }
    }

    /// Returns the number of bytes that others can see as written.
    pub(crate) fn published(&self) -> u64 {
        self.cells.tail.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that others can see as read.
    pub(crate) fn freed(&self) -> u64 {
        self.cells.head.load(Ordering::Relaxed)
    }

    /// Publishes a wrong position of the writer. The process itself goes on with the right one.
    pub(crate) fn forge_tail(&self, tail: u64) {
        let own = self.published();
        self.view.tail.get_or_init(|| AtomicU64::new(own));
        self.cells.tail.store(tail, Ordering::Relaxed);
    }

    /// Publishes a wrong position of the reader.
    pub(crate) fn forge_head(&self, head: u64) {
        let own = self.freed();
        self.view.head.get_or_init(|| AtomicU64::new(own));
        self.cells.head.store(head, Ordering::Relaxed);
    }

    /// Writes a number somewhere, as a hostile process does.
    pub(crate) fn scribble(&self, rng: &mut Rng) {
        let head = self.freed() as usize % CAPACITY;
        let at = match rng.chance(0.6) {
            // The length of the next record.
            true => head,
            false => rng.below(CAPACITY as u64 - 4) as usize,
        };
        let number = match rng.below(4) {
            0 => rng.u32(),
            1 => rng.below(2 * CAPACITY as u64) as u32,
            2 => rng.below(1 << 17) as u32,
            _ => rng.below(256) as u32,
        };
        self.cells.copy_in(at, &number.to_ne_bytes());
    }
}

impl RingMemory for SimRing {
    const CAPACITY: usize = CAPACITY;
    const FRONT: usize = FRONT;

    fn tail(&self) -> &AtomicU64 {
        let cells = self.access();
        self.view.tail.get().unwrap_or(&cells.tail)
    }

    fn head(&self) -> &AtomicU64 {
        let cells = self.access();
        self.view.head.get().unwrap_or(&cells.head)
    }

    fn reader_sleeps(&self) -> &AtomicU32 {
        &self.access().reader_sleeps
    }

    fn writer_waits(&self) -> &AtomicU32 {
        &self.access().writer_waits
    }

    /// A process that dies here has copied a part.
    fn copy_in(&self, at: usize, bytes: &[u8]) {
        if self.view.process.access() {
            let seed = bytes.iter().take(64).fold(at, |sum, &byte| {
                sum.wrapping_mul(31).wrapping_add(byte.into())
            });
            self.cells.copy_in(at, &bytes[..seed % bytes.len().max(1)]);
        }
        self.memory().copy_in(at, bytes);
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        let cells = self.access();
        bytes.copy_from_slice(&cells.records.borrow()[at..at + bytes.len()]);
        if let Some(rng) = &self.view.scribbler {
            let rng = &mut *rng.borrow_mut();
            if rng.chance(0.3) {
                self.scribble(rng);
            }
        }
    }

    fn shrink(&self) {
        self.access().records.borrow_mut()[FRONT..].fill(0);
    }
}
