//! One received datagram.

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
