//! What rsockets say to each other, as bytes: nothing here knows a socket.
//!
//! A stream begins with a [`Greeting`] in the private data of REQ and REP. From then
//! on everything is an RDMA WRITE, most of them with a [`Message`] as immediate
//! data. Datagrams have headers of their own (`datagram`).

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

/// Bytes that are not what they should be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Bytes at a place that was checked to be there.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}
