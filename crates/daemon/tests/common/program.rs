//! A program with slots of a link and a connection to the connection manager.

use std::collections::VecDeque;
use std::net::IpAddr;

use ferroce_cm::ports::Host;
use ferroce_cm::{
    Accept, Address, Closed, ConnId, Event, IpHeader, PortSpace, PrivateData, QpParameters,
    Request as Connect, Snapshot,
};
use ferroce_control::protocol::encode_numbered;
use ferroce_control::{
    Attachment, CmAnswer, CmCall, CmEvent, CmId, CmPort, Connection, Error, Reply, Request,
    RequestNumber, attach, packet,
};
use rustix::net::SendFlags;

/// A program.
pub(crate) struct Program {
    pub(crate) cm: CmClient,
    pub(crate) attachment: Attachment,
}

/// A control connection for requests to the connection manager.
pub(crate) struct CmClient {
    connection: Connection,
    events: VecDeque<CmEvent>,
}

impl Program {
    pub(crate) fn start(link: &str) -> Program {
        Program {
            cm: CmClient::open(),
            attachment: attach(link, 1).expect("attached"),
        }
    }

    pub(crate) fn link(&self) -> u32 {
        self.attachment.link.index
    }

    /// Returns a QPN in the program's slot.
    pub(crate) fn qpn(&self, index: u32) -> u32 {
        u32::from(self.attachment.slots[0].slot) << 16 | index
    }

    /// Sends a connection request.
    pub(crate) fn connect(
        &mut self,
        (from, to): (&str, &str),
        port: u16,
        qpn: u32,
    ) -> Result<CmId<ConnId>, Error> {
        let request = Box::new(request((from, to), port, qpn));
        let link = self.link();
        match self.cm.call(CmCall::Connect { link, request })? {
            CmAnswer::Connection { conn } => Ok(conn),
            other => panic!("{other:?}"),
        }
    }

    /// Connects and waits for the REP.
    pub(crate) fn establish(&mut self, path: (&str, &str), port: u16, qpn: u32) -> Connected {
        let conn = self.connect(path, port, qpn).expect("asked");
        let response = self.cm.event();
        let Event::Response { conn: id, .. } = response.event else {
            panic!("{response:?}");
        };
        assert_eq!(id, conn.id);
        let (qp, snapshot) = (response.qp.unwrap(), self.cm.establish(conn));
        Connected { conn, qp, snapshot }
    }
}

/// An established connection.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) conn: CmId<ConnId>,
    pub(crate) qp: QpParameters,
    pub(crate) snapshot: Snapshot,
}

/// Returns the request of rdma_connect.
pub(crate) fn request((from, to): (&str, &str), port: u16, qpn: u32) -> Connect {
    let (local, remote): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let header = IpHeader {
        source_port: 40_000,
        source: local,
        destination: remote,
    };
    let mut private_data = PrivateData::EMPTY;
    header.emit(&mut private_data.0);
    private_data.0[IpHeader::LEN] = 0x42;
    Connect {
        private_data,
        ..Connect::new(
            Address { local, remote },
            PortSpace::Tcp.service_id(port),
            qpn,
        )
    }
}

impl CmClient {
    pub(crate) fn open() -> CmClient {
        CmClient {
            connection: super::connect(),
            events: VecDeque::new(),
        }
    }

    /// Makes a call, and keeps the events that arrive before the answer.
    pub(crate) fn call(&mut self, call: CmCall) -> Result<CmAnswer, Error> {
        let mut reply = self.connection.request(&Request::Cm(call))?.0;
        loop {
            match reply {
                Reply::CmAnswer(answer) => return Ok(answer),
                Reply::CmEvent(event) => self.events.push_back(*event),
                other => panic!("{other:?}"),
            }
            reply = self.connection.answer()?.0;
        }
    }

    /// Sends calls that ferroced does not answer.
    pub(crate) fn notify(&self, calls: Vec<CmCall>) {
        let request = Request::CmNotices(calls);
        // ferroced does not reply, so the number may be used again.
        let bytes = encode_numbered(Some(RequestNumber::MAX), &request);
        packet::send(&self.connection, &bytes, &[], SendFlags::empty()).expect("sent");
    }

    pub(crate) fn done(&mut self, call: CmCall) {
        assert_eq!(self.call(call).unwrap(), CmAnswer::Done);
    }

    /// Makes a call that must be refused. Returns the errno.
    pub(crate) fn errno(&mut self, call: CmCall) -> i32 {
        match self.call(call) {
            Err(error @ Error::Refused { .. }) => error.errno(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for an event.
    pub(crate) fn event(&mut self) -> CmEvent {
        if let Some(event) = self.events.pop_front() {
            return event;
        }
        match self.connection.answer().expect("an event in time").0 {
            Reply::CmEvent(event) => *event,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn bind(&mut self, address: &str, port: u16) -> Result<(CmPort, u16), Error> {
        let call = CmCall::Bind {
            space: PortSpace::Tcp,
            source: Host::new(address.parse().unwrap()),
            port,
            destination: None,
            reuse: false,
            af_only: false,
        };
        match self.call(call)? {
            CmAnswer::Bound { port, number } => Ok((port, number)),
            other => panic!("{other:?}"),
        }
    }

    /// Binds and listens.
    pub(crate) fn listen(&mut self, address: &str, port: u16) -> CmPort {
        let (port, _) = self.bind(address, port).expect("bound");
        self.done(CmCall::Listen { port, backlog: 0 });
        port
    }

    /// Waits for an event, which must be a request. Returns its connection and queue pair
    /// parameters.
    pub(crate) fn requested(&mut self, at: CmPort) -> (CmId<ConnId>, QpParameters) {
        let event = self.event();
        let Event::Request(incoming) = &event.event else {
            panic!("{event:?}");
        };
        assert_eq!(event.port, Some(at));
        assert_eq!(incoming.user_data()[0], 0x42);
        let (link, id) = (event.link, incoming.conn);
        let qp = event.qp.expect("comes with a request");
        assert_eq!(qp.remote_qpn, incoming.remote_qpn);
        (CmId { link, id }, qp)
    }

    pub(crate) fn accept(&mut self, conn: CmId<ConnId>, qpn: u32) {
        let accept = Box::new(Accept::new(qpn));
        self.done(CmCall::Accept { conn, accept });
    }

    pub(crate) fn establish(&mut self, conn: CmId<ConnId>) -> Snapshot {
        match self.call(CmCall::Establish { conn }).unwrap() {
            CmAnswer::Established { snapshot } => *snapshot,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for an event, which must be that this connection is established.
    pub(crate) fn established(&mut self, conn: CmId<ConnId>) -> Snapshot {
        let event = self.event();
        assert_eq!(event.event, Event::Established { conn: conn.id });
        event.snapshot.expect("comes with it")
    }

    /// Waits for an event, which must be the end of this connection.
    pub(crate) fn disconnected(&mut self, conn: CmId<ConnId>) -> Closed {
        match self.event().event {
            Event::Disconnected { conn: id, by, .. } if id == conn.id => by,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for an event, which must be TIMEWAIT_EXIT of this connection.
    pub(crate) fn timewait_exited(&mut self, conn: CmId<ConnId>) {
        assert_eq!(self.event().event, Event::TimewaitExit { conn: conn.id });
    }

    /// Returns true if ferroced has closed the connection.
    pub(crate) fn is_broken(&mut self) -> bool {
        matches!(self.connection.answer(), Err(Error::Closed))
    }
}
