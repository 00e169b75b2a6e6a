//! An echo server and its client, over the safe rdma_cm API.
//!
//! Run ferroced with a link first, then the server and, in another terminal, the client:
//!
//! ```text
//! ferroce link add rxe0 type rxe netdev lo
//! cargo run -p ferroce-rdmacm --example echo -- server 127.0.0.1:7471
//! cargo run -p ferroce-rdmacm --example echo -- client 127.0.0.1:7471 hello
//! ```
//!
//! The client sends each of its words as one message and prints the reply. The server serves
//! one client after the other until it is ended; with `--once` it ends after the first.

#![forbid(unsafe_code)]

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use ferroce_device::transport::{
    Access, Arm, QpCap, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Wc, WcStatus,
};
use ferroce_device::{Buffer, CompletionChannel, Cq, Qp};
use ferroce_rdmacm::{
    ConnParams, EventChannel, EventKind, Id, PortSpace, QpConfig, RESOLVE_TIMEOUT,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Longest message.
const SIZE: u32 = 4096;
/// Work request number of the receive.
const RECEIVE: u64 = 1;
/// Work request number of the send.
const SEND: u64 = 2;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["server", address] => serve(address.parse()?, false),
        ["server", "--once", address] => serve(address.parse()?, true),
        ["client", address, ref words @ ..] if !words.is_empty() => call(address.parse()?, words),
        _ => Err(
            "usage: echo server [--once] ADDRESS:PORT | echo client ADDRESS:PORT WORD...".into(),
        ),
    }
}

fn serve(address: SocketAddr, once: bool) -> Result<()> {
    let events = EventChannel::new()?;
    let listener = Id::new(&events, PortSpace::Tcp, QpType::Rc)?;
    listener.bind(address)?;
    listener.listen(16)?;
    println!("listening on {address}");
    loop {
        let EventKind::ConnectRequest { id, .. } = events.next()?.kind else {
            continue;
        };
        let client = id.peer_addr();
        // Events of this connection go to a channel of its own.
        let own_events = EventChannel::new()?;
        id.migrate(&own_events)?;
        let connection = Connection::new(id, own_events)?;
        connection.post_receive()?;
        connection.id.accept(&ConnParams::default())?;
        connection.expect_established()?;
        println!("{client:?} has connected");
        while let Some(message) = connection.receive()? {
            connection.post_receive()?;
            connection.send(&message)?;
        }
        println!("{client:?} has disconnected");
        if once {
            return Ok(());
        }
    }
}

fn call(address: SocketAddr, words: &[&str]) -> Result<()> {
    let events = EventChannel::new()?;
    let id = Id::new(&events, PortSpace::Tcp, QpType::Rc)?;
    id.resolve_addr(None, address, RESOLVE_TIMEOUT)?;
    match events.next()?.kind {
        EventKind::AddressResolved => id.resolve_route()?,
        other => return Err(format!("no address: {other:?}").into()),
    }
    match events.next()?.kind {
        EventKind::RouteResolved => {}
        other => return Err(format!("no route: {other:?}").into()),
    }
    let connection = Connection::new(id, events)?;
    connection.post_receive()?;
    connection.id.connect(&ConnParams::default())?;
    connection.expect_established()?;
    for word in words {
        connection.send(word.as_bytes())?;
        let reply = connection.receive()?.ok_or("the server has disconnected")?;
        connection.post_receive()?;
        println!("{}", String::from_utf8_lossy(&reply));
    }
    connection.id.disconnect()?;
    Ok(())
}

/// A connection with a completion queue, and memory for one message in each direction.
struct Connection {
    id: Id,
    events: EventChannel,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    completions: Arc<CompletionChannel>,
    /// The first half receives, the second half sends.
    memory: Buffer,
}

impl Connection {
    fn new(id: Id, events: EventChannel) -> Result<Connection> {
        let link = id.device().ok_or("the id has no device")?;
        let device = link.device();
        let completions = device.create_channel()?;
        let cq = device.create_cq(8, Some(Arc::clone(&completions)))?;
        let cap = QpCap {
            max_send_wr: 4,
            max_recv_wr: 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp = id.create_qp(&QpConfig {
            pd: None,
            send_cq: &cq,
            recv_cq: &cq,
            cap,
            sq_sig_all: true,
        })?;
        let memory = Buffer::new(device, link.pd(), 2 * SIZE as usize, Access::LOCAL_WRITE)?;
        Ok(Connection {
            id,
            events,
            qp,
            cq,
            completions,
            memory,
        })
    }

    fn expect_established(&self) -> Result<()> {
        match self.events.next()?.kind {
            EventKind::Established(_) => Ok(()),
            other => Err(format!("not connected: {other:?}").into()),
        }
    }

    fn post_receive(&self) -> Result<()> {
        self.qp.post_recv(&RecvWr {
            wr_id: RECEIVE,
            sges: &[self.memory.sge(0, SIZE)],
        })?;
        Ok(())
    }

    /// Sends a message. Its completion is taken by the next receive.
    fn send(&self, message: &[u8]) -> Result<()> {
        let length = u32::try_from(message.len()).ok().filter(|n| *n <= SIZE);
        let length = length.ok_or_else(|| format!("at most {SIZE} bytes in a message"))?;
        self.memory.write(SIZE as usize, message);
        let sge = self.memory.sge(SIZE as usize, length);
        self.qp.post_send(SendWr {
            wr_id: SEND,
            op: SendOp::Send { imm: None },
            flags: SendFlags::empty(),
            data: SendData::Sges(&[sge]),
            ud: None,
            xrc_srq: 0,
        })?;
        Ok(())
    }

    /// Waits for a message: None if the peer has disconnected.
    fn receive(&self) -> Result<Option<Vec<u8>>> {
        while let Some(wc) = self.completion()? {
            match (wc.status, wc.wr_id) {
                (WcStatus::Success, RECEIVE) => {
                    let mut message = vec![0; wc.byte_len as usize];
                    self.memory.read(0, &mut message);
                    return Ok(Some(message));
                }
                (WcStatus::Success, _) => {}
                (status, _) => return Err(format!("work request failed: {status:?}").into()),
            }
        }
        Ok(None)
    }

    /// Waits for a completion: None if the peer has disconnected.
    fn completion(&self) -> Result<Option<Wc>> {
        use rustix::event::{PollFd, PollFlags, poll};
        loop {
            let mut next = None;
            if self.cq.poll(1, |wc| next = Some(wc)) > 0 {
                return Ok(next);
            }
            self.cq.arm(Arm::Any);
            // A completion that came before the queue was armed does not wake us.
            if self.cq.poll(1, |wc| next = Some(wc)) > 0 {
                return Ok(next);
            }
            let completions = self.completions.fd();
            let mut fds = [
                PollFd::new(&self.events, PollFlags::IN),
                PollFd::from_borrowed_fd(completions, PollFlags::IN),
            ];
            poll(&mut fds, None)?;
            let [event, completion] = fds.map(|fd| !fd.revents().is_empty());
            if completion {
                self.completions.take()?;
            } else if event && let EventKind::Disconnected { .. } = self.events.next()?.kind {
                self.id.disconnect()?;
                return Ok(None);
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The queue pair goes before its completion queue.
        self.id.detach_qp();
    }
}
