//! The control thread of a device, which holds the connection to ferroced.
//!
//! The thread sleeps until ferroced reports a change of the link. If ferroced ends, queue
//! pairs continue: the program owns the sockets of its slots. The thread waits for the next
//! ferroced and names the program's slots to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;

use ferroce_control::{
    Connection, CreditPage, Error, LinkEvent, LinkEventKind, LinkInfo, PortState, SocketEscrow,
    Watch, resume,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use crate::device::port_mtu;
use crate::event_queue::{AsyncEvent, EventQueue};
use crate::resources::Inventory;
use crate::shard::Shard;
use crate::signals;

/// Time between attempts to reach a ferroced that exists but does not answer.
const RETRY: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The running control thread. The drop ends the thread and gives the slots back.
#[derive(Debug)]
pub(crate) struct Supervisor {
    end: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

struct Work {
    link: Arc<RwLock<LinkInfo>>,
    slots: Vec<u8>,
    /// Descriptors that the next ferroced needs: the group of sockets and the credits.
    kept: (SocketEscrow, CreditPage),
    event_queue: Arc<EventQueue>,
    shards: Arc<[Arc<Shard>]>,
    inventory: Inventory,
    end: OwnedFd,
}

impl Supervisor {
    pub(crate) fn start(
        link: Arc<RwLock<LinkInfo>>,
        slots: Vec<u8>,
        kept: (SocketEscrow, CreditPage),
        connection: Connection,
        event_queue: Arc<EventQueue>,
        shards: Arc<[Arc<Shard>]>,
        inventory: Inventory,
    ) -> std::io::Result<Supervisor> {
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        let work = Work {
            link,
            slots,
            kept,
            event_queue,
            shards,
            inventory,
            end: end.try_clone()?,
        };
        let _blocked = signals::block_all();
        #[allow(clippy::disallowed_methods)] // this is the runtime: threads live here
        let thread = std::thread::Builder::new()
            .name("ferroce-control".into())
            .spawn(move || work.run(connection))?;
        Ok(Supervisor {
            end,
            thread: Some(thread),
        })
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _cannot_fail = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl Work {
    fn run(&self, mut connection: Connection) {
        loop {
            match connection.try_event() {
                Ok(Some(event)) => self.handle(event),
                Ok(None) => {
                    while let Some((stream, keys)) = connection.take_report() {
                        self.inventory.report(&stream, keys);
                    }
                    if !self.wait(connection.as_fd(), None) {
                        return;
                    }
                }
                Err(error) => {
                    tracing::info!("ferroced is gone ({error}); queue pairs go on without it");
                    let dir = connection.dir().to_owned();
                    drop(connection);
                    match self.reconnect(&dir) {
                        Some(new) => connection = new,
                        None => return,
                    }
                }
            }
        }
    }

    /// Waits for the next ferroced. Returns none if the device is closed first.
    fn reconnect(&self, dir: &std::path::Path) -> Option<Connection> {
        let name = self.link().name;
        let watch = match Watch::new(dir) {
            Ok(watch) => watch,
            Err(error) => {
                tracing::warn!("cannot wait for another ferroced: {error}");
                return None;
            }
        };
        loop {
            watch.clear();
            let retry = match resume(dir, &name, &self.slots, &self.kept.0, &self.kept.1) {
                Ok((connection, link)) => {
                    tracing::info!("ferroced is back");
                    match link {
                        Some(link) => self.catch_up(link),
                        None => self.event_queue.post(AsyncEvent::DeviceFatal),
                    }
                    return Some(connection);
                }
                Err(error) => {
                    tracing::debug!("no ferroced yet: {error}");
                    // No event reports that a stopped ferroced continues.
                    matches!(error, Error::Timeout { .. }).then_some(RETRY)
                }
            };
            if !self.wait(watch.as_fd(), retry) {
                return None;
            }
        }
    }

    /// Sleeps until the descriptor is readable or the time is over. Returns false if the
    /// thread must end.
    fn wait(&self, fd: BorrowedFd<'_>, timeout: Option<Timespec>) -> bool {
        let mut fds = [
            PollFd::from_borrowed_fd(self.end.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(fd, PollFlags::IN),
        ];
        let _interrupted = poll(&mut fds, timeout.as_ref());
        fds[0].revents().is_empty()
    }

    fn handle(&self, event: LinkEvent) {
        self.changed(event.link);
        match event.kind {
            LinkEventKind::PortActive => self.event_queue.post(AsyncEvent::PortActive),
            LinkEventKind::PortErr => self.event_queue.post(AsyncEvent::PortError),
            LinkEventKind::GidChange => self.event_queue.post(AsyncEvent::GidChange),
            LinkEventKind::Removed => self.event_queue.post(AsyncEvent::DeviceFatal),
            LinkEventKind::Added | LinkEventKind::Changed => {}
        }
    }

    /// Reports the changes of the link since the last ferroced ended.
    fn catch_up(&self, link: LinkInfo) {
        let before = self.link();
        let (gids, state) = (link.gids != before.gids, link.state());
        self.changed(link);
        if gids {
            self.event_queue.post(AsyncEvent::GidChange);
        }
        if state != before.state() {
            self.event_queue.post(match state {
                PortState::Active => AsyncEvent::PortActive,
                PortState::Down => AsyncEvent::PortError,
            });
        }
    }

    fn changed(&self, link: LinkInfo) {
        let mtu = port_mtu(&link);
        for shard in self.shards.iter() {
            shard.with(|mut adapter, _| adapter.set_port_mtu(mtu));
        }
        *self
            .link
            .write()
            .expect("no code panics while it holds the link") = link;
    }

    fn link(&self) -> LinkInfo {
        self.link
            .read()
            .expect("no code panics while it holds the link")
            .clone()
    }
}
