//! What was received: datagrams, and runs of them.

use core::ops::Deref;

use ferroce_transport::Datagram;

/// A datagram to port 4791, as the engine takes it, and where it came in. A UDP socket
/// is not shown the identification.
#[derive(Copy, Clone, Debug)]
pub struct Incoming<'a> {
    /// Addresses, what else the IP header said, and the packet.
    pub datagram: Datagram<'a>,
    /// The interface it came by.
    pub ifindex: u32,
}

impl<'a> Deref for Incoming<'a> {
    type Target = Datagram<'a>;

    fn deref(&self) -> &Datagram<'a> {
        &self.datagram
    }
}

/// One datagram, or several of one flow that the kernel merged: they stand one behind the
/// other in the payload, `segment` bytes each but perhaps the last, which may be shorter.
#[derive(Copy, Clone, Debug)]
pub struct IncomingRun<'a> {
    /// All of them as if they were one.
    pub merged: Incoming<'a>,
    /// Bytes of each.
    pub segment: usize,
}

impl<'a> IncomingRun<'a> {
    /// The datagrams one by one.
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
