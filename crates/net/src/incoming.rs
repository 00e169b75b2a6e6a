//! Received datagrams, and runs of them.

use core::ops::Deref;

use ferroce_roce::Datagram;

/// A datagram to port 4791, as the engine takes it, and its interface. A UDP socket does
/// not see the IPv4 identification.
#[derive(Copy, Clone, Debug)]
pub struct Incoming<'a> {
    /// The packet, with the fields of its IP header.
    pub datagram: Datagram<'a>,
    /// Index of the interface that received the datagram.
    pub ifindex: u32,
}

impl<'a> Deref for Incoming<'a> {
    type Target = Datagram<'a>;

    fn deref(&self) -> &Datagram<'a> {
        &self.datagram
    }
}

/// One datagram, or several of one flow that the kernel merged. In the payload they follow
/// each other, each of `segment` bytes; the last may be shorter.
#[derive(Copy, Clone, Debug)]
pub struct IncomingRun<'a> {
    /// All datagrams as one.
    pub merged: Incoming<'a>,
    /// Bytes of each datagram.
    pub segment: usize,
}

impl<'a> IncomingRun<'a> {
    /// Returns the datagrams one by one.
    pub fn datagrams(&self) -> impl Iterator<Item = Incoming<'a>> {
        let Incoming { datagram, ifindex } = self.merged;
        let segment = self.segment;
        let mut rest = datagram;
        core::iter::from_fn(move || {
            let (datagram, others) = rest.split_first(segment)?;
            rest = others;
            Some(Incoming { datagram, ifindex })
        })
    }
}
