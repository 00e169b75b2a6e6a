use ferroce_cm::ports::Host;
use ferroce_cm::{
    Accept, Event, IpHeader, Kind, PortSpace, PrivateData, QpParameters, Request, Role,
    SidrRequest, Snapshot,
};
use ferroce_control::{CmAnswer, CmCall, CmId, Gid};

use super::*;
use crate::refusal::Refusal;

const ANN: ClientId = 5;
const BOB: ClientId = 6;
const PORT: u16 = 7174;
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const START: Time = Time::ZERO;

fn link(index: u32, address: IpAddr) -> LinkInfo {
    LinkInfo {
        index,
        up: true,
        carrier: true,
        netdev_mtu: 1500,
        active_mtu: 1024,
        mac: [2, 0, 0, 0, 0, index as u8],
        gids: vec![Gid {
            index: 0,
            address,
            ifindex: 3,
            netdev: "eth0".into(),
            tentative: false,
        }],
        ..LinkInfo::new(&format!("rxe{index}"), "eth0", 3)
    }
}

/// Two programs on one link, which delivers every MAD to itself.
struct World {
    connections: Connections,
    now: Time,
    told: Vec<(ClientId, CmEvent)>,
}

impl World {
    fn new() -> World {
        let mut connections = Connections::new(50_000..=50_999, [1; 32]);
        connections.update_link(&link(0, HERE));
        World {
            connections,
            now: START,
            told: Vec::new(),
        }
    }

    fn call(&mut self, client: ClientId, call: CmCall) -> Result<CmAnswer, Refusal> {
        let caller = Caller {
            client,
            privileged: false,
        };
        self.connections.call(self.now, caller, call)
    }

    fn errno(&mut self, client: ClientId, call: CmCall) -> i32 {
        self.call(client, call).unwrap_err().errno
    }

    fn done(&mut self, client: ClientId, call: CmCall) {
        assert_eq!(self.call(client, call).unwrap(), CmAnswer::Done);
    }

    /// Delivers MADs until none is left.
    fn settle(&mut self) {
        while let Some(output) = self.connections.next_output() {
            match output {
                Output::Tell { client, event } => self.told.push((client, event)),
                Output::Send { link, transmit, .. } => {
                    let address = Address {
                        local: transmit.address.remote,
                        remote: transmit.address.local,
                    };
                    let mad = &transmit.mad[..];
                    let _ = self.connections.receive(self.now, link, address, mad);
                }
            }
        }
    }

    /// Runs all timers.
    fn wait(&mut self) {
        self.settle();
        while let Some(at) = self.connections.next_timeout() {
            self.now = at;
            self.connections.handle_timeout(at);
            self.settle();
        }
    }

    fn told(&mut self) -> (ClientId, CmEvent) {
        self.settle();
        self.told.remove(0)
    }

    fn bind(&mut self, client: ClientId, ip: IpAddr, port: u16) -> Result<CmPort, Refusal> {
        match self.call(client, bind(ip, port))? {
            CmAnswer::Bound { port, .. } => Ok(port),
            other => panic!("{other:?}"),
        }
    }

    fn listen(&mut self, client: ClientId, backlog: u32) -> CmPort {
        let any = std::net::Ipv4Addr::UNSPECIFIED.into();
        let port = self.bind(client, any, PORT).unwrap();
        self.done(client, CmCall::Listen { port, backlog });
        port
    }

    fn connect(&mut self, client: ClientId, qpn: u32) -> CmId<ConnId> {
        let request = Box::new(request(qpn));
        match self.call(client, CmCall::Connect { link: 0, request }) {
            Ok(CmAnswer::Connection { conn }) => conn,
            other => panic!("{other:?}"),
        }
    }

    fn requested(&mut self) -> CmId<ConnId> {
        let (_, CmEvent { link, event, .. }) = self.told();
        match event {
            Event::Request(incoming) => CmId {
                link,
                id: incoming.conn,
            },
            other => panic!("{other:?}"),
        }
    }

    /// Connects a queue pair of Ann to one of Bob, who listens; returns both ends.
    fn established(&mut self, qpn: u32) -> (CmId<ConnId>, CmId<ConnId>) {
        let ours = self.connect(ANN, qpn);
        let theirs = self.requested();
        let accept = Box::new(Accept::new(qpn + 1));
        self.done(
            BOB,
            CmCall::Accept {
                conn: theirs,
                accept,
            },
        );
        assert!(matches!(self.told().1.event, Event::Response { .. }));
        let established = self.call(ANN, CmCall::Establish { conn: ours });
        assert!(matches!(established, Ok(CmAnswer::Established { .. })));
        let told = self.told();
        assert_eq!(told.1.event, Event::Established { conn: theirs.id });
        assert!(told.1.snapshot.is_some());
        (ours, theirs)
    }

    fn is_empty(&self) -> bool {
        let c = &self.connections;
        let idle = |side: &LinkSide| {
            side.connections.is_empty()
                && side.sidr_requests.is_empty()
                && side.listeners.is_empty()
        };
        c.links.values().all(idle)
            && c.links.values().all(|side| side.cm.is_idle())
            && c.programs.is_empty()
            && c.ports.is_empty()
            && c.out.is_empty()
    }
}

fn bind(ip: IpAddr, port: u16) -> CmCall {
    CmCall::Bind {
        space: PortSpace::Tcp,
        source: Host::new(ip),
        port,
        destination: None,
        reuse: false,
        af_only: true,
    }
}

fn way() -> Address {
    Address {
        local: HERE,
        remote: HERE,
    }
}

fn request(qpn: u32) -> Request {
    let header = IpHeader {
        source_port: 4000,
        source: HERE,
        destination: HERE,
    };
    let mut private_data = PrivateData::EMPTY;
    header.emit(&mut private_data.0);
    Request {
        private_data,
        ..Request::new(way(), PortSpace::Tcp.service_id(PORT), qpn)
    }
}

#[test]
fn ended_connections_leave_no_state() {
    let mut world = World::new();
    world.listen(BOB, 0);
    for n in 0..10 {
        let (ours, theirs) = world.established(100 + 2 * n);
        world.done(ANN, CmCall::Disconnect { conn: ours });
        assert!(
            matches!(world.told().1.event, Event::Disconnected { conn, .. } if conn == theirs.id)
        );
        world.done(BOB, CmCall::Disconnect { conn: theirs });
        assert!(
            matches!(world.told().1.event, Event::Disconnected { conn, .. } if conn == ours.id)
        );
        world.wait();
        assert_eq!(world.told.len(), 2, "TIMEWAIT ends on both sides");
        world.told.clear();
        for (client, conn) in [(ANN, ours), (BOB, theirs)] {
            assert_eq!(world.errno(client, CmCall::Destroy { conn }), libc::ENOENT);
        }
    }
    world.connections.close(world.now, ANN);
    world.connections.close(world.now, BOB);
    world.wait();
    assert!(world.is_empty());
}

#[test]
fn closed_program_leaves_no_state() {
    let mut world = World::new();
    world.listen(BOB, 0);
    let (_, theirs) = world.established(100);
    // A request that waits, a request that was taken, a SIDR request without a listener.
    world.connect(ANN, 102);
    let waits = world.requested();
    world.connect(ANN, 104);
    let taken = world.requested();
    world.done(BOB, CmCall::Taken { conn: taken });
    let sidr = SidrRequest {
        address: way(),
        service_id: PortSpace::Udp.service_id(1),
        private_data: PrivateData::EMPTY,
    };
    let ask = CmCall::SidrRequest {
        link: 0,
        request: Box::new(sidr),
    };
    assert!(matches!(
        world.call(ANN, ask),
        Ok(CmAnswer::SidrRequested { .. })
    ));
    world.connections.close(world.now, ANN);
    let (client, event) = world.told();
    assert_eq!(client, BOB);
    assert!(matches!(event.event, Event::Disconnected { conn, .. } if conn == theirs.id));
    world.settle();
    let told: Vec<_> = world.told.drain(..).map(|(_, e)| e.event).collect();
    for conn in [waits, taken] {
        let rejected = |e: &Event| matches!(e, Event::Rejected { conn: id, .. } if *id == conn.id);
        assert!(told.iter().any(rejected), "{told:?}");
    }
    world.connections.close(world.now, BOB);
    world.wait();
    assert!(world.told.is_empty());
    assert!(world.is_empty());
}

#[test]
fn objects_of_another_program_are_unknown() {
    let mut world = World::new();
    let port = world.listen(BOB, 0);
    let (ours, theirs) = world.established(100);
    let accept = Box::new(Accept::new(9));
    let calls = [
        CmCall::Disconnect { conn: theirs },
        CmCall::Destroy { conn: theirs },
        CmCall::Taken { conn: theirs },
        CmCall::Establish { conn: theirs },
        CmCall::CommunicationEstablished { conn: theirs },
        CmCall::Accept {
            conn: theirs,
            accept,
        },
        CmCall::Release { port },
        CmCall::Listen { port, backlog: 1 },
        CmCall::Destroy {
            conn: CmId {
                link: 7,
                id: ours.id,
            },
        },
    ];
    for call in calls {
        assert_eq!(world.errno(ANN, call.clone()), libc::ENOENT, "{call:?}");
    }
    // Its own connection, in the wrong state.
    let accept = Box::new(Accept::new(9));
    let call = CmCall::Accept { conn: ours, accept };
    assert_eq!(world.errno(ANN, call), libc::EINVAL);
    world.done(ANN, CmCall::Disconnect { conn: ours });
}

#[test]
fn ports_are_bound_by_the_kernels_rules() {
    let mut world = World::new();
    let any: IpAddr = std::net::Ipv4Addr::UNSPECIFIED.into();
    assert_eq!(world.errno(ANN, bind(any, 80)), libc::EACCES);
    let port = world.bind(ANN, HERE, PORT).unwrap();
    assert_eq!(world.errno(BOB, bind(HERE, PORT)), libc::EADDRINUSE);
    assert_eq!(world.errno(BOB, bind(any, PORT)), libc::EADDRNOTAVAIL);
    world.done(ANN, CmCall::Listen { port, backlog: 1 });
    let again = CmCall::Listen { port, backlog: 1 };
    assert_eq!(world.errno(ANN, again), libc::EINVAL);
    world.done(ANN, CmCall::Release { port });
    assert_eq!(world.errno(ANN, CmCall::Release { port }), libc::ENOENT);
    let other = [198, 51, 100, 1].into();
    let port = world.bind(BOB, other, PORT).unwrap();
    let call = CmCall::Listen { port, backlog: 1 };
    assert_eq!(
        world.errno(BOB, call),
        libc::EADDRNOTAVAIL,
        "no link has it"
    );
    let privileged = Caller {
        client: ANN,
        privileged: true,
    };
    let bound = world.connections.call(START, privileged, bind(any, 80));
    assert!(matches!(bound, Ok(CmAnswer::Bound { number: 80, .. })));
    let bound = world.call(ANN, bind(any, 0));
    assert!(
        matches!(bound, Ok(CmAnswer::Bound { number, .. }) if (50_000..=50_999).contains(&number))
    );
}

#[test]
fn request_for_a_bound_port_waits_for_its_listener() {
    let mut world = World::new();
    let port = world.bind(BOB, HERE, PORT).unwrap();
    world.connect(ANN, 100);
    world.settle();
    assert_eq!(world.told, []);
    world.done(BOB, CmCall::Listen { port, backlog: 0 });
    world.connections.handle_timeout(world.now);
    world.requested();
}

#[test]
fn request_for_the_port_of_a_client_is_rejected_at_once() {
    let mut world = World::new();
    let client = CmCall::Bind {
        space: PortSpace::Tcp,
        source: Host::new(HERE),
        port: PORT,
        destination: Some((Host::new(HERE), 1)),
        reuse: false,
        af_only: true,
    };
    world.call(BOB, client).unwrap();
    world.connect(ANN, 100);
    let (_, CmEvent { event, .. }) = world.told();
    assert!(matches!(event, Event::Rejected { .. }), "{event:?}");
}

#[test]
fn wildcard_port_listens_on_a_later_link() {
    let mut world = World::new();
    let port = world.listen(BOB, 0);
    let later: IpAddr = [192, 0, 2, 9].into();
    world.connections.update_link(&link(4, later));
    // A second update starts no second listener.
    world.connections.update_link(&link(4, later));
    assert_eq!(world.connections.links[&4].listeners.len(), 1);
    world.done(BOB, CmCall::Release { port });
    assert!(world.connections.links[&4].listeners.is_empty());
}

#[test]
fn port_listens_on_a_later_address() {
    let mut world = World::new();
    let port = world.bind(BOB, HERE, PORT).unwrap();
    world.done(BOB, CmCall::Listen { port, backlog: 0 });
    world
        .connections
        .update_link(&link(4, [192, 0, 2, 9].into()));
    assert!(world.connections.links[&4].listeners.is_empty());
    world.connections.update_link(&link(4, HERE));
    assert_eq!(world.connections.links[&4].listeners.len(), 1);
}

#[test]
fn removing_a_link_ends_its_connections() {
    let mut world = World::new();
    world.listen(BOB, 0);
    let (ours, theirs) = world.established(100);
    world.connections.remove_link(world.now, 0);
    assert_eq!(
        world.errno(ANN, CmCall::Disconnect { conn: ours }),
        libc::ENOENT
    );
    assert_eq!(
        world.errno(BOB, CmCall::Disconnect { conn: theirs }),
        libc::ENOENT
    );
    let sent = |output| match output {
        Output::Send { transmit, .. } => transmit.mad[16..18] == [0, 0x15],
        Output::Tell { .. } => panic!("programs get the event of the link instead"),
    };
    let outputs: Vec<_> = std::iter::from_fn(|| world.connections.next_output()).collect();
    assert_eq!(outputs.len(), 2);
    assert!(outputs.into_iter().all(sent), "a DREQ each");
    let request = Box::new(request(7));
    let call = CmCall::Connect { link: 0, request };
    assert_eq!(world.errno(ANN, call), libc::ENODEV);
    world.connections.update_link(&link(0, HERE));
    world.established(100);
}

#[test]
fn invalid_calls_are_refused() {
    let mut world = World::new();
    let good = request(7);
    let connect = |request: Request| CmCall::Connect {
        link: 0,
        request: Box::new(request),
    };
    let elsewhere = Address {
        local: [198, 51, 100, 1].into(),
        ..way()
    };
    let mixed = Address {
        remote: std::net::Ipv6Addr::LOCALHOST.into(),
        ..way()
    };
    let nowhere = Address {
        remote: [0, 0, 0, 0].into(),
        ..way()
    };
    for (address, errno) in [
        (elsewhere, libc::EADDRNOTAVAIL),
        (mixed, libc::EINVAL),
        (nowhere, libc::EINVAL),
    ] {
        let call = connect(Request { address, ..good });
        assert_eq!(world.errno(ANN, call), errno, "{address:?}");
    }
    let call = connect(Request {
        packet_life_time: 255,
        ..good
    });
    assert_eq!(world.errno(ANN, call), libc::EINVAL);
    let snapshot = Snapshot {
        role: Role::Active,
        kind: Kind::Rc,
        address: way(),
        ports: None,
        local_id: 1,
        remote_id: 2,
        remote_guid: 3,
        tid: 4,
        qp: QpParameters::default(),
        interval: Time::MAX,
        max_retries: 255,
    };
    let resume = |snapshot: Snapshot| CmCall::Resume {
        link: 0,
        snapshot: Box::new(snapshot),
    };
    assert_eq!(world.errno(ANN, resume(snapshot)), libc::EINVAL);
    let patient = Snapshot {
        interval: Time::from_secs(5),
        ..snapshot
    };
    assert!(world.call(ANN, resume(patient)).is_ok());
    assert_eq!(world.errno(ANN, resume(patient)), libc::EADDRINUSE);
}

#[test]
fn waiting_requests_count_against_the_backlog() {
    let mut world = World::new();
    world.listen(BOB, 2);
    let asked: Vec<_> = (0..3).map(|n| world.connect(ANN, 100 + n)).collect();
    let (first, second) = (world.requested(), world.requested());
    assert!(
        world.told.is_empty(),
        "the third waits until its peer retransmits the REQ"
    );
    world.done(BOB, CmCall::Taken { conn: first });
    world.done(BOB, CmCall::Taken { conn: second });
    world.now = world.connections.next_timeout().unwrap();
    world.connections.handle_timeout(world.now);
    world.requested();
    assert_eq!(asked.len(), 3);
}
