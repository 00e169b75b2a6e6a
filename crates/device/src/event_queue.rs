//! The event queue of a device: asynchronous events, CQ notifications and failures.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use ferroce_roce::{Event, Failure, QpEvent};

use crate::channel::Channel;
use crate::cq::Cq;

/// An asynchronous event of a device, in the order of `ibv_event_type`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// A completion was lost because its completion queue was full.
    CqError {
        /// The completion queue's id.
        cq: u32,
    },
    /// An event of a queue pair.
    Qp {
        /// Number of the queue pair.
        qpn: u32,
        /// Kind of the event.
        kind: QpEvent,
    },
    /// A shared receive queue has fewer receives than its limit.
    SrqLimitReached {
        /// Number of the shared receive queue.
        srq: u32,
    },
    /// The port became active.
    PortActive,
    /// The port went down.
    PortError,
    /// The GID table has changed.
    GidChange,
    /// The link was removed.
    DeviceFatal,
}

/// Takes the events of all engines of a device, and passes them to their readers.
#[derive(Debug)]
pub(crate) struct EventQueue {
    cqs: Mutex<HashMap<u32, Weak<Cq>>>,
    events: Mutex<VecDeque<AsyncEvent>>,
    /// One record for each event in the queue.
    channel: Channel,
    last_failure: Mutex<Option<Failure>>,
}

impl EventQueue {
    pub(crate) fn new() -> std::io::Result<EventQueue> {
        Ok(EventQueue {
            cqs: Mutex::default(),
            events: Mutex::default(),
            channel: Channel::new()?,
            last_failure: Mutex::default(),
        })
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    pub(crate) fn register(&self, cq: &Arc<Cq>) {
        lock(&self.cqs).insert(cq.id(), Arc::downgrade(cq));
    }

    /// Returns all completion queues.
    pub(crate) fn cqs(&self) -> Vec<Arc<Cq>> {
        lock(&self.cqs).values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn forget(&self, cq: u32) {
        lock(&self.cqs).remove(&cq);
    }

    /// Takes the oldest event; waits for one unless the channel is non-blocking.
    pub(crate) fn take(&self) -> std::io::Result<AsyncEvent> {
        loop {
            self.channel.take()?;
            if let Some(event) = lock(&self.events).pop_front() {
                return Ok(event);
            }
        }
    }

    pub(crate) fn last_failure(&self) -> Option<Failure> {
        lock(&self.last_failure).clone()
    }

    /// Passes an engine's event to its reader.
    pub(crate) fn report(&self, event: Event) {
        match event {
            Event::CqNotify { cq } => {
                let cq = lock(&self.cqs).get(&cq).and_then(Weak::upgrade);
                if let Some(cq) = cq {
                    cq.notify();
                }
            }
            Event::CqError { cq } => self.post(AsyncEvent::CqError { cq }),
            Event::SrqLimitReached { srq } => self.post(AsyncEvent::SrqLimitReached { srq }),
            Event::Qp { qpn, kind } => self.post(AsyncEvent::Qp { qpn, kind }),
            Event::Failure(failure) => {
                tracing::info!("{failure}");
                *lock(&self.last_failure) = Some(failure);
            }
        }
    }

    /// Adds an asynchronous event.
    pub(crate) fn post(&self, event: AsyncEvent) {
        lock(&self.events).push_back(event);
        self.channel.put(1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code panics while it holds a list")
}
