//! A [`ferroce_endpoint::Endpoint`] for tests, which panics on failure.

use std::ops::{Deref, DerefMut};

use ferroce_device::transport::{QpState, QpType, SendOp, Wc, WcStatus};
use ferroce_endpoint::{Introduction, Options};

use super::LINK;

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Endpoint(ferroce_endpoint::Endpoint);

impl Deref for Endpoint {
    type Target = ferroce_endpoint::Endpoint;

    fn deref(&self) -> &ferroce_endpoint::Endpoint {
        &self.0
    }
}

impl DerefMut for Endpoint {
    fn deref_mut(&mut self) -> &mut ferroce_endpoint::Endpoint {
        &mut self.0
    }
}

impl Endpoint {
    pub(crate) fn open(kind: QpType, gid_index: u8) -> Endpoint {
        let options = Options::new(kind, gid_index);
        Endpoint(ferroce_endpoint::Endpoint::open(LINK, options).expect("a device"))
    }

    pub(crate) fn introduction(&self) -> Introduction {
        self.0.introduction().expect("a GID")
    }

    /// Moves the queue pair to RTS.
    pub(crate) fn connect(&mut self, theirs: &Introduction) {
        self.0.connect(theirs).expect("it connects");
    }

    /// Moves the queue pair to RTS, if the device permits.
    pub(crate) fn try_connect(&mut self, theirs: &Introduction) -> Result<(), String> {
        let connected = self.0.connect(theirs);
        connected.map_err(|error| format!("{error:#}"))
    }

    /// Posts a WRITE to the same offset of the peer's memory.
    pub(crate) fn write(&self, wr_id: u64, offset: u64, length: u32) {
        self.0.write(wr_id, offset, length).expect("room");
    }

    /// Posts a READ from the same offset of the peer's memory.
    pub(crate) fn read(&self, wr_id: u64, offset: u64, length: u32) {
        self.0.read(wr_id, offset, length).expect("room");
    }

    pub(crate) fn post(&self, wr_id: u64, op: SendOp, offset: u64, length: u32) {
        self.0.post(wr_id, op, offset, length).expect("room");
    }

    pub(crate) fn receive(&self, wr_id: u64, offset: u64, length: u32) {
        self.0.receive(wr_id, offset, length).expect("room");
    }

    /// Polls until `count` completions have arrived.
    pub(crate) fn completions(&self, count: usize) -> Vec<Wc> {
        self.0.completions(count).expect("in time")
    }

    /// Polls for one completion and returns its status.
    pub(crate) fn status(&self) -> WcStatus {
        self.completions(1)[0].status
    }

    /// Polls until `count` successful completions have arrived.
    pub(crate) fn succeed(&self, count: usize) -> Vec<Wc> {
        self.0.succeed(count).expect("successes in time")
    }

    pub(crate) fn state(&self) -> QpState {
        self.0.state().expect("it exists")
    }

    /// Writes to this end's memory.
    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) {
        self.pages.put(offset, bytes).expect("writable");
    }

    /// Reads this end's memory.
    pub(crate) fn get(&self, offset: u64, length: u32) -> Vec<u8> {
        self.pages.get(offset, length).expect("readable")
    }

    /// Unmaps this end's memory.
    pub(crate) fn unmap(&self) {
        // SAFETY: these tests use no word of the pages, and end soon after the unmapping.
        // Memory that is mapped there meanwhile is accessed by a work request of the test,
        // whose status then fails the test.
        unsafe { self.pages.unmap() }.expect("unmapped");
    }

    pub(crate) fn make_read_only(&self) {
        self.pages.make_read_only().expect("protected");
    }
}
