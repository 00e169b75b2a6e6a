//! The rsocket protocol as bytes.
//!
//! A stream begins with a [`Greeting`] in the private data of REQ and REP. All later
//! messages are RDMA WRITEs, most of them with a [`Message`] as immediate data. A datagram
//! starts with an [`AddressHeader`] between queue pairs, a [`DatagramHeader`] over UDP.

mod address_header;
mod datagram;
mod greeting;
mod message;
mod region;

pub(crate) use address_header::AddressHeader;
pub(crate) use datagram::{DatagramHeader, MAX_DATAGRAM_HEADER};
pub(crate) use greeting::{Greeting, iomap_capacity};
pub(crate) use message::{Control, Message};
pub(crate) use region::{ByteOrder, IOMAP_LEN, IomapEntry, REGION_LEN, Region};

/// The reason why bytes from a peer were refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Returns the `N` bytes at an offset. The caller has checked the length.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}
