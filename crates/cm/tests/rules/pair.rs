//! Two nodes, a clock, and a network that the test controls.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ferroce_cm::message::Message;
use ferroce_cm::{
    Accept, Address, Cm, Config, ConnId, Event, IpHeader, ListenAddress, Mad, PortSpace,
    PrivateData, Request, Time,
};

pub(crate) const A: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 11));
pub(crate) const B: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 12));
pub(crate) const A_GUID: u64 = 0xaaaa;
pub(crate) const B_GUID: u64 = 0xbbbb;
pub(crate) const A_QPN: u32 = 0x11;
pub(crate) const B_QPN: u32 = 0x22;
pub(crate) const SERVICE: u64 = PortSpace::Tcp.service_id(7174);
/// Time between a REQ and its retransmission.
pub(crate) const REQ_INTERVAL: Duration = Duration::from_millis(4608);
/// Time between a REP and its retransmission.
pub(crate) const REP_INTERVAL: Duration = Duration::from_millis(4096);
pub(crate) const TIMEWAIT: Duration = Duration::from_millis(512);
/// Time for which an MRA makes its receiver wait: 65.5 seconds and an acknowledgement
/// timeout.
pub(crate) const MRA_WAIT: Duration = Duration::from_millis(65_536 + 512);

pub(crate) const fn from_a() -> Address {
    Address {
        local: A,
        remote: B,
    }
}

pub(crate) const fn from_b() -> Address {
    Address {
        local: B,
        remote: A,
    }
}

/// Two nodes: `a` connects, `b` listens.
pub(crate) struct Pair {
    pub(crate) now: Time,
    pub(crate) a: Cm,
    pub(crate) b: Cm,
}

pub(crate) fn request() -> Request {
    request_from(A_QPN)
}

pub(crate) fn request_from(qpn: u32) -> Request {
    let mut request = Request::new(from_a(), SERVICE, qpn);
    let header = IpHeader {
        source_port: 40_000,
        source: A,
        destination: B,
    };
    header.emit(&mut request.private_data.0);
    request
}

/// Returns all messages that a node has to send.
pub(crate) fn sent(cm: &mut Cm) -> Vec<Mad> {
    std::iter::from_fn(|| cm.poll_transmit())
        .map(|transmit| Mad::decode(&transmit.mad[..]).unwrap())
        .collect()
}

/// Returns all events of a node.
pub(crate) fn poll_events(cm: &mut Cm) -> Vec<Event> {
    std::iter::from_fn(|| cm.poll_event()).collect()
}

/// Returns the names of messages, for comparison.
pub(crate) fn names(mads: &[Mad]) -> Vec<&'static str> {
    mads.iter()
        .map(|mad| match mad.message {
            Message::Req(_) => "REQ",
            Message::Mra(_) => "MRA",
            Message::Rej(_) => "REJ",
            Message::Rep(_) => "REP",
            Message::Rtu(_) => "RTU",
            Message::Dreq(_) => "DREQ",
            Message::Drep(_) => "DREP",
            Message::SidrReq(_) => "SIDR_REQ",
            Message::SidrRep(_) => "SIDR_REP",
            Message::Lap(_) => "LAP",
            Message::Apr(_) => "APR",
        })
        .collect()
}

impl Pair {
    pub(crate) fn new() -> Pair {
        let mut b = Cm::new(Config::new(B_GUID), [2; 32]);
        b.listen(SERVICE, ListenAddress::Any, 16).unwrap();
        Pair {
            now: Duration::from_secs(1000),
            a: Cm::new(Config::new(A_GUID), [1; 32]),
            b,
        }
    }

    /// Delivers the messages of `a` to `b` and returns them.
    pub(crate) fn a_to_b(&mut self) -> Vec<Mad> {
        let mads = sent(&mut self.a);
        for mad in &mads {
            let _ = self.b.receive(self.now, from_b(), &mad.encode());
        }
        mads
    }

    /// Delivers the messages of `b` to `a` and returns them.
    pub(crate) fn b_to_a(&mut self) -> Vec<Mad> {
        let mads = sent(&mut self.b);
        for mad in &mads {
            let _ = self.a.receive(self.now, from_a(), &mad.encode());
        }
        mads
    }

    /// Delivers messages in both directions until no node has any to send.
    pub(crate) fn deliver_all(&mut self) {
        while !(self.a_to_b().is_empty() & self.b_to_a().is_empty()) {}
    }

    /// Advances the time of both nodes, deadline by deadline.
    pub(crate) fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        for cm in [&mut self.a, &mut self.b] {
            while let Some(at) = cm.next_timeout()
                && at <= end
            {
                cm.handle_timeout(at);
            }
        }
        self.now = end;
    }

    /// `b`'s program has taken the request event of `a`.
    pub(crate) fn requested() -> (Pair, ConnId, ConnId) {
        let mut pair = Pair::new();
        let a = pair.a.connect(pair.now, &request());
        assert_eq!(names(&pair.a_to_b()), ["REQ"]);
        let events = poll_events(&mut pair.b);
        let [Event::Request(incoming)] = &events[..] else {
            panic!("{events:?}");
        };
        let b = incoming.conn;
        (pair, a, b)
    }

    /// `b` has accepted, but its REP is not delivered yet.
    pub(crate) fn accepted() -> (Pair, ConnId, ConnId) {
        let (mut pair, a, b) = Pair::requested();
        pair.b.accept(pair.now, b, &Accept::new(B_QPN)).unwrap();
        (pair, a, b)
    }

    /// `a`'s program has taken the response event of `b`.
    pub(crate) fn responded() -> (Pair, ConnId, ConnId) {
        let (mut pair, a, b) = Pair::accepted();
        assert_eq!(names(&pair.b_to_a()), ["REP"]);
        let events = poll_events(&mut pair.a);
        assert!(matches!(events[..], [Event::Response { conn, .. }] if conn == a));
        (pair, a, b)
    }

    /// Both ends are established.
    pub(crate) fn connected() -> (Pair, ConnId, ConnId) {
        let (mut pair, a, b) = Pair::responded();
        pair.a.establish(a, PrivateData::EMPTY).unwrap();
        assert_eq!(names(&pair.a_to_b()), ["RTU"]);
        assert_eq!(poll_events(&mut pair.b), [Event::Established { conn: b }]);
        (pair, a, b)
    }
}
