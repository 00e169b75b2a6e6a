//! A minimal netlink client for configuring test networks.

use std::io;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const HEADER: usize = 16;
const NESTED: u16 = 0x8000;

/// A request body: the family's header followed by attributes.
#[derive(Debug, Default, Clone)]
pub(crate) struct Body(Vec<u8>);

impl Body {
    pub(crate) fn new(header: &[u8]) -> Body {
        Body(header.into())
    }

    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Body {
        let length = u16::try_from(4 + value.len()).expect("short");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn text(self, kind: u16, value: &str) -> Body {
        self.attribute(kind, format!("{value}\0").as_bytes())
    }

    pub(crate) fn nest(self, kind: u16, inner: Body) -> Body {
        self.attribute(kind | NESTED, &inner.0)
    }

    /// Appends a number in network byte order, as netfilter requires.
    pub(crate) fn number(self, kind: u16, value: u32) -> Body {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// Builds the complete message.
    fn message(&self, kind: u16, flags: i32, sequence: u32) -> Vec<u8> {
        let flags = (flags | libc::NLM_F_REQUEST) as u16;
        let length = (HEADER + self.0.len()) as u32;
        let mut bytes = Vec::new();
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend(&self.0);
        bytes
    }

    /// Sends the request and waits for the reply.
    pub(crate) fn send(self, kind: u16, flags: i32) -> io::Result<()> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        let bytes = self.message(kind, flags | libc::NLM_F_ACK, 0);
        rustix::net::send(&socket, &bytes, SendFlags::empty())?;
        answer(&socket)
    }
}

/// Sends a batch of requests to netfilter, which applies all of them or none.
pub(crate) fn send_all(requests: Vec<(u16, i32, Body)>) -> io::Result<()> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(rustix::net::netlink::NETFILTER),
    )?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    let mut bytes = Vec::new();
    let mut answers = 0;
    for (number, (kind, flags, body)) in requests.iter().enumerate() {
        // The batch begin and end messages get no ACK; the kernel replies to them only
        // if they fail.
        let asks = number > 0 && number + 1 < requests.len();
        let ack = if asks { libc::NLM_F_ACK } else { 0 };
        answers += usize::from(asks);
        bytes.extend(body.message(*kind, flags | ack, number as u32));
    }
    rustix::net::send(&socket, &bytes, SendFlags::empty())?;
    (0..answers).try_for_each(|_| answer(&socket))
}

/// Waits for an NLMSG_ERROR reply; error 0 means success.
fn answer(socket: impl std::os::fd::AsFd) -> io::Result<()> {
    let mut answer = [0; 4096];
    let (_, read) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
    let code = answer
        .get(HEADER..HEADER + 4)
        .filter(|_| read >= HEADER + 4);
    let code = i32::from_ne_bytes(code.expect("an answer").try_into().expect("4 bytes"));
    match code {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}
