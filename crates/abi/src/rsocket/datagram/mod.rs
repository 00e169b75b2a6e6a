//! Datagram sockets.
//!
//! A socket is a UDP socket and a queue pair for each local address it came to use. The first
//! datagrams to a peer go over UDP and tell it our queue pair; it answers with
//! its own; from then on datagrams go from queue pair to queue pair. Whoever
//! uses the socket looks at the UDP socket, too: no thread is needed.

mod book;
mod local;
mod options;
mod transfer;
mod udp;

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::PollFlags;

use super::queue::Sizes;
use super::settings::Settings;
use super::stream::Prepared;
use super::sys;
use super::wait::Waker;

use self::book::Book;

/// A datagram socket.
#[derive(Debug)]
pub(crate) struct Datagram {
    book: Mutex<Book>,
    nonblocking: AtomicBool,
    udp: OwnedFd,
    /// One descriptor for all completion queues, for they come and go.
    completions: OwnedFd,
}

impl Datagram {
    pub(crate) fn new(family: c_int) -> Result<Datagram, c_int> {
        let settings = Settings::get();
        let sizes = Sizes {
            send: settings.send_queue.into(),
            receive: settings.receive_queue.into(),
            inline: 0,
        };
        Ok(Datagram {
            book: Mutex::new(Book::new(sizes)),
            nonblocking: AtomicBool::new(false),
            udp: udp::socket(family)?,
            completions: udp::epoll()?,
        })
    }

    /// The number that programs know it by.
    pub(crate) fn fd(&self) -> c_int {
        self.udp.as_raw_fd()
    }

    pub(crate) fn nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn bind(&self, addr: &SocketAddr) -> Result<(), c_int> {
        udp::bind(&self.udp, addr)
    }

    pub(crate) fn connect(&self, addr: &SocketAddr) -> Result<(), c_int> {
        udp::connect(&self.udp, addr)?;
        self.lock().connected = Some(*addr);
        Ok(())
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        udp::local(&self.udp)
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.lock().connected
    }

    pub(crate) fn close(&self) {
        let mut book = self.lock();
        book.closed = true;
        book.waiters.wake_all();
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn poll(&self, wanted: PollFlags) -> PollFlags {
        let mut book = self.lock();
        self.step(&mut book);
        book.ready() & wanted
    }

    pub(crate) fn prepare(&self, wanted: PollFlags, waker: &Arc<Waker>) -> Prepared {
        let mut book = self.lock();
        book.arm();
        self.step(&mut book);
        if book.ready().intersects(wanted) {
            return Prepared::Ready;
        }
        book.waiters.add(waker);
        Prepared::Sleep([self.fd(), self.completions.as_raw_fd()])
    }

    pub(crate) fn woken(&self, waker: &Arc<Waker>) {
        let mut book = self.lock();
        book.waiters.remove(waker);
        book.take_events();
        self.step(&mut book);
    }

    /// Waits until `ready` says that something is there; looks at least once.
    fn wait<T>(
        &self,
        nonblocking: bool,
        mut ready: impl FnMut(&mut Book) -> Option<Result<T, c_int>>,
    ) -> Result<T, c_int> {
        let mut book = self.lock();
        let spin = Duration::from_micros(Settings::get().polling_time.into());
        let until = sys::now() + spin;
        loop {
            if book.closed {
                return Err(libc::EBADF);
            }
            book.progress();
            if let Some(result) = ready(&mut book) {
                return result;
            }
            if nonblocking || sys::now() >= until {
                break;
            }
            drop(book);
            core::hint::spin_loop();
            book = self.lock();
        }
        if nonblocking {
            self.step(&mut book);
            return ready(&mut book).unwrap_or(Err(libc::EAGAIN));
        }
        let waker = Waker::mine()?;
        loop {
            book.arm();
            self.step(&mut book);
            if let Some(result) = ready(&mut book) {
                return result;
            }
            if book.closed {
                return Err(libc::EBADF);
            }
            book.waiters.add(&waker);
            drop(book);
            let mut fds = [self.fd(), self.completions.as_raw_fd(), waker.fd()]
                .map(|fd| sys::pollfd(fd, PollFlags::IN));
            let interval = Settings::get().wake_up_interval;
            let slept = sys::poll(&mut fds, Some(Duration::from_millis(interval.into())));
            waker.clear();
            self.woken(&waker);
            book = self.lock();
            if let Some(result) = ready(&mut book) {
                return result;
            }
            slept?;
        }
    }
}
