//! The thread that sets connections up: it accepts TCP connections, and exchanges the frames
//! of MPA.
//!
//! A task has a socket, and perhaps a deadline. While a task runs, it belongs to the thread and
//! no lock is held, so that a task may use everything else of this crate.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::sync::{Mutex, OnceLock};

use ferroce_control::PerProcess;
use ferroce_device::iwarp::Time;
use ferroce_device::start_thread;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::OwnedFd;

use super::now;
use crate::error::Error;
use crate::lock;

/// Number of a task.
pub(super) type TaskNumber = u64;

/// The number of the wakeup descriptor in the epoll set; tasks have higher ones.
const WAKEUP: TaskNumber = 0;

/// The state of a socket that a task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    Readable,
    Writable,
}

/// Work that waits for a socket.
pub(super) trait Task: Send {
    fn socket(&self) -> &OwnedFd;
    fn watch(&self) -> Watch;
    /// Returns the time at which [`Task::expired`] is called.
    fn deadline(&self) -> Option<Time>;
    /// Continues after the socket has become ready. Returns the task if it is not done.
    fn ready(self: Box<Self>) -> Option<Box<dyn Task>>;
    fn expired(self: Box<Self>);
}

/// The tasks of a process.
#[derive(Default)]
struct Setup {
    tasks: Mutex<Tasks>,
    descriptors: OnceLock<Descriptors>,
}

#[derive(Default)]
struct Tasks {
    last: TaskNumber,
    /// None for the task that is running.
    all: BTreeMap<TaskNumber, Option<Box<dyn Task>>>,
}

struct Descriptors {
    epoll: OwnedFd,
    wakeup: OwnedFd,
}

static SETUP: PerProcess<Setup> = PerProcess::new();

/// Adds a task. The first one starts the thread.
pub(super) fn add(task: Box<dyn Task>) -> Result<TaskNumber, Error> {
    let failed = |error: io::Error| Error::system("setup of connections", error);
    let setup = SETUP.get();
    let mut tasks = lock(&setup.tasks);
    let descriptors = match setup.descriptors.get() {
        Some(descriptors) => descriptors,
        None => {
            let descriptors = start(setup).map_err(failed)?;
            setup.descriptors.get_or_init(|| descriptors)
        }
    };
    tasks.last += 1;
    let number = tasks.last;
    watch(descriptors, number, &*task).map_err(failed)?;
    let is_earliest = task.deadline().is_some();
    tasks.all.insert(number, Some(task));
    drop(tasks);
    if is_earliest {
        // The thread sleeps until an earlier deadline, or without one.
        let _full = rustix::io::write(&descriptors.wakeup, &1u64.to_ne_bytes());
    }
    Ok(number)
}

/// Removes a task. One that runs ends after its step.
pub(super) fn remove(number: TaskNumber) {
    let setup = SETUP.get();
    let task = lock(&setup.tasks).all.remove(&number).flatten();
    if let (Some(task), Some(descriptors)) = (&task, setup.descriptors.get()) {
        let _gone = epoll::delete(&descriptors.epoll, task.socket());
    }
    drop(task);
}

fn watch(descriptors: &Descriptors, number: TaskNumber, task: &dyn Task) -> io::Result<()> {
    let events = match task.watch() {
        Watch::Readable => epoll::EventFlags::IN,
        Watch::Writable => epoll::EventFlags::OUT,
    };
    let data = epoll::EventData::new_u64(number);
    Ok(epoll::add(&descriptors.epoll, task.socket(), data, events)?)
}

/// Starts the thread. It lasts as long as the process.
fn start(setup: &'static Setup) -> io::Result<Descriptors> {
    let descriptors = Descriptors {
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        wakeup: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
    };
    let data = epoll::EventData::new_u64(WAKEUP);
    epoll::add(
        &descriptors.epoll,
        &descriptors.wakeup,
        data,
        epoll::EventFlags::IN,
    )?;
    // Peers connect while the program does something else.
    start_thread("ferroce-mpa".into(), move || run(setup))?;
    Ok(descriptors)
}

fn run(setup: &'static Setup) {
    // The caller of `start` sets them while it holds the lock.
    drop(lock(&setup.tasks));
    let Some(descriptors) = setup.descriptors.get() else {
        return;
    };
    loop {
        let timeout = next_deadline(setup).map(|deadline| {
            let left = deadline.nanos_since(now());
            Timespec {
                tv_sec: (left / 1_000_000_000) as i64,
                tv_nsec: (left % 1_000_000_000) as i64,
            }
        });
        let mut list = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        if let Ok((events, _)) = epoll::wait(&descriptors.epoll, &mut list, timeout.as_ref()) {
            for event in events {
                match event.data.u64() {
                    WAKEUP => {
                        let mut count = [0; 8];
                        let _empty = rustix::io::read(&descriptors.wakeup, &mut count);
                    }
                    number => step(setup, descriptors, number),
                }
            }
        }
        expire(setup, descriptors);
    }
}

/// Takes a task out, to run it without the lock.
fn take(setup: &Setup, descriptors: &Descriptors, number: TaskNumber) -> Option<Box<dyn Task>> {
    let task = lock(&setup.tasks).all.get_mut(&number)?.take()?;
    // The task may give its socket away.
    let _gone = epoll::delete(&descriptors.epoll, task.socket());
    Some(task)
}

fn step(setup: &Setup, descriptors: &Descriptors, number: TaskNumber) {
    let Some(task) = take(setup, descriptors, number) else {
        return;
    };
    let left = task.ready();
    let mut tasks = lock(&setup.tasks);
    // A task that was removed meanwhile is dropped after the lock.
    let _removed = match (tasks.all.remove(&number), left) {
        (Some(_), Some(task)) => match watch(descriptors, number, &*task) {
            Ok(()) => {
                tasks.all.insert(number, Some(task));
                None
            }
            Err(error) => {
                tracing::warn!("setup of a connection: {error}");
                Some(task)
            }
        },
        (_, left) => left,
    };
    drop(tasks);
}

fn next_deadline(setup: &Setup) -> Option<Time> {
    let tasks = lock(&setup.tasks);
    let waiting = tasks.all.values().flatten();
    waiting.filter_map(|task| task.deadline()).min()
}

fn expire(setup: &Setup, descriptors: &Descriptors) {
    let now = now();
    let due: Vec<TaskNumber> = {
        let tasks = lock(&setup.tasks);
        let waiting = tasks.all.iter();
        waiting
            .filter_map(|(number, task)| Some((number, task.as_ref()?.deadline()?)))
            .filter_map(|(number, deadline)| (deadline <= now).then_some(*number))
            .collect()
    };
    for number in due {
        if let Some(task) = take(setup, descriptors, number) {
            task.expired();
            lock(&setup.tasks).all.remove(&number);
        }
    }
}
