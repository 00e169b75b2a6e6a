//! `poll` for rsockets and other descriptors together.

use std::sync::Arc;
use std::time::Duration;

use libc::pollfd;
use rustix::event::PollFlags;

use crate::settings::Settings;
use crate::socket::{self, Socket};
use crate::stream::Prepared;
use crate::wait::Waker;
use crate::{Result, sys};

/// Waits for events of descriptors, as `poll` does, and returns the number of those that are
/// ready. Descriptors of rsockets and others may be mixed.
///
/// # Errors
///
/// EINTR.
pub fn poll(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<usize> {
    let sockets: Vec<Option<Socket>> = fds.iter().map(|entry| socket::find(entry.fd)).collect();
    if sockets.iter().all(Option::is_none) {
        return sys::poll(fds, timeout);
    }
    let end = timeout.map(|timeout| sys::now() + timeout);
    let mut ready = look(fds, &sockets)?;
    if ready == 0 && timeout != Some(Duration::ZERO) {
        let spin = sys::now() + Duration::from_micros(Settings::get().polling_time.into());
        while ready == 0 && sys::now() < end.map_or(spin, |end| end.min(spin)) {
            core::hint::spin_loop();
            ready = look(fds, &sockets)?;
        }
    }
    if ready > 0 || timeout == Some(Duration::ZERO) {
        return Ok(ready);
    }
    let waker = Waker::mine()?;
    loop {
        let left = end.map(|end| end.saturating_sub(sys::now()));
        let slept = sleep(fds, &sockets, left, &waker);
        let ready = look(fds, &sockets)?;
        if ready > 0 || left.is_some_and(|left| left.is_zero()) {
            return Ok(ready);
        }
        slept?;
    }
}

/// Checks all descriptors without waiting.
fn look(fds: &mut [pollfd], sockets: &[Option<Socket>]) -> Result<usize> {
    let mut ready = 0;
    let mut others = false;
    for (entry, socket) in fds.iter_mut().zip(sockets) {
        entry.revents = match socket {
            Some(socket) => flags_of(socket.poll(wanted(entry))),
            None => {
                others |= entry.fd >= 0;
                0
            }
        };
        ready += usize::from(entry.revents != 0);
    }
    if others {
        ready += look_at_others(fds, sockets)?;
    }
    Ok(ready)
}

fn look_at_others(fds: &mut [pollfd], sockets: &[Option<Socket>]) -> Result<usize> {
    let is_other = |place: &usize| sockets[*place].is_none() && fds[*place].fd >= 0;
    let places: Vec<usize> = (0..fds.len()).filter(is_other).collect();
    let mut others: Vec<pollfd> = places.iter().map(|place| fds[*place]).collect();
    let ready = sys::poll(&mut others, Some(Duration::ZERO))?;
    for (place, other) in places.into_iter().zip(others) {
        fds[place].revents = other.revents;
    }
    Ok(ready)
}

/// Sleeps until a descriptor may be ready.
fn sleep(
    fds: &[pollfd],
    sockets: &[Option<Socket>],
    timeout: Option<Duration>,
    waker: &Arc<Waker>,
) -> Result<()> {
    let mut wait: Vec<pollfd> = vec![sys::pollfd(waker.fd(), PollFlags::IN)];
    let mut asleep = 0;
    let mut ready = false;
    for (entry, socket) in fds.iter().zip(sockets) {
        asleep += 1;
        match socket
            .as_ref()
            .map(|socket| socket.prepare(wanted(entry), waker))
        {
            None => wait.push(*entry),
            Some(Prepared::Sleep(descriptors)) => {
                wait.extend(descriptors.map(|fd| sys::pollfd(fd, PollFlags::IN)));
            }
            Some(Prepared::Ready) => {
                // `prepare` did not register the thread, so `woken` must not be called.
                asleep -= 1;
                ready = true;
                break;
            }
        }
    }
    let interval = Duration::from_millis(Settings::get().wake_up_interval.into());
    let slept = match ready {
        true => Ok(0),
        false => sys::poll(
            &mut wait,
            Some(timeout.map_or(interval, |t| t.min(interval))),
        ),
    };
    for socket in sockets[..asleep].iter().flatten() {
        socket.woken(waker);
    }
    waker.clear();
    slept.map(|_| ())
}

fn wanted(entry: &pollfd) -> PollFlags {
    PollFlags::from_bits_truncate(entry.events as u16)
}

fn flags_of(flags: PollFlags) -> i16 {
    flags.bits() as i16
}

impl Socket {
    /// Returns the poll events that are `wanted` and present.
    pub(crate) fn poll(&self, wanted: PollFlags) -> PollFlags {
        match self {
            Socket::Stream(stream) => stream.poll(wanted),
            Socket::Datagram(datagram) => datagram.poll(wanted),
            Socket::Epoll(epoll) => epoll.poll(wanted),
        }
    }

    fn prepare(&self, wanted: PollFlags, waker: &Arc<Waker>) -> Prepared {
        match self {
            Socket::Stream(stream) => stream.prepare(wanted, waker),
            Socket::Datagram(datagram) => datagram.prepare(wanted, waker),
            Socket::Epoll(epoll) => epoll.prepare(wanted),
        }
    }

    fn woken(&self, waker: &Arc<Waker>) {
        match self {
            Socket::Stream(stream) => stream.woken(waker),
            Socket::Datagram(datagram) => datagram.woken(waker),
            Socket::Epoll(_) => {}
        }
    }
}
