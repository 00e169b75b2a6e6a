//! Netlink requests, just enough of it to build a network.

use std::io;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const HEADER: usize = 16;
const NESTED: u16 = 0x8000;

/// A request in the making: a header of its own, then attributes.
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

    /// Sends it and waits for the answer.
    pub(crate) fn send(self, kind: u16, flags: i32) -> io::Result<()> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        let flags = (flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let length = (HEADER + self.0.len()) as u32;
        let mut bytes = Vec::new();
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend(self.0);
        rustix::net::send(&socket, &bytes, SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (_, read) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
        // The answer is an error message; the error may be 0.
        let code = answer
            .get(HEADER..HEADER + 4)
            .filter(|_| read >= HEADER + 4);
        let code = i32::from_ne_bytes(code.expect("an answer").try_into().expect("4 bytes"));
        match code {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}
