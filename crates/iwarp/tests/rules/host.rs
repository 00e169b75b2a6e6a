//! A host with one queue pair, its memory, and the FPDUs that it sends and receives.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use ferroce_iwarp::crc;
use ferroce_iwarp::fpdu::{FpduError, FpduReader, Sink, padding};
use ferroce_iwarp::header::{Header, Place};
use ferroce_iwarp::mpa::{Params, Role};
use ferroce_iwarp::opcode::Opcode;
use ferroce_iwarp::terminate::{Code, Terminate};
use ferroce_iwarp::{CloseCause, Config, Engine, StreamEvent};
use ferroce_objects::{
    Access, AttrMask, Cq, Event, Fault, MemRef, Memory, MemorySpace, Mr, Pd, QpAttr, QpCap, QpInit,
    QpState, QpType, RecvWr, Regions, SendData, SendFlags, SendOp, SendWr, Sge, Time, Wc, WcStatus,
};

/// Start address of a host's memory.
pub(crate) const BASE: u64 = 0x10_0000;
/// Size of a host's memory in bytes.
pub(crate) const SIZE: usize = 1 << 20;

/// Memory of a host from [`BASE`] on. Ranges in `holes` fault like unmapped memory.
pub(crate) struct Ram {
    bytes: RefCell<Vec<u8>>,
    pub(crate) holes: RefCell<Vec<Range<u64>>>,
}

impl Ram {
    fn index(&self, at: MemRef, length: usize) -> Result<usize, Fault> {
        assert_eq!(at.space(), MemorySpace::Host);
        let end = at.addr() + length as u64;
        let holes = self.holes.borrow();
        let hole = holes.iter().any(|h| at.addr() < h.end && h.start < end);
        if hole || at.addr() < BASE || end > BASE + SIZE as u64 {
            return Err(Fault { at });
        }
        Ok((at.addr() - BASE) as usize)
    }

    pub(crate) fn get(&self, address: u64, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        self.read(MemRef::host(address), &mut out).unwrap();
        out
    }

    pub(crate) fn put(&self, address: u64, data: &[u8]) {
        self.write(MemRef::host(address), data).unwrap();
    }
}

impl Memory for Ram {
    fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault> {
        let start = self.index(at, into.len())?;
        into.copy_from_slice(&self.bytes.borrow()[start..start + into.len()]);
        Ok(())
    }

    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault> {
        let start = self.index(at, data.len())?;
        self.bytes.borrow_mut()[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn compare_swap(&self, at: MemRef, _: u64, _: u64) -> Result<u64, Fault> {
        Err(Fault { at })
    }

    fn fetch_add(&self, at: MemRef, _: u64) -> Result<u64, Fault> {
        Err(Fault { at })
    }

    fn store_release(&self, at: MemRef, _: [u8; 8]) -> Result<(), Fault> {
        Err(Fault { at })
    }

    fn flush(&self, at: MemRef, _: u64, _: bool) -> Result<(), Fault> {
        Err(Fault { at })
    }
}

/// A host with one connected queue pair.
pub(crate) struct Host {
    pub(crate) now: Time,
    pub(crate) engine: Engine,
    pub(crate) ram: Ram,
    pub(crate) regions: Arc<Regions>,
    pub(crate) pd: Arc<Pd>,
    /// The whole memory, with all permissions.
    pub(crate) mr: Arc<Mr>,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) qpn: u32,
}

/// Parameters of a stream without CRCs and with an IRD and ORD of 4.
pub(crate) const PARAMS: Params = Params {
    role: Role::Initiator,
    crc: false,
    ird: 4,
    ord: 4,
    rtr: None,
};
/// The MSS of a stream over Ethernet.
pub(crate) const MSS: u32 = 1448;

/// Sizes of the queue pair.
pub(crate) const CAP: QpCap = QpCap {
    max_send_wr: 16,
    max_recv_wr: 16,
    max_send_sge: 4,
    max_recv_sge: 4,
    max_inline_data: 80,
};

impl Host {
    /// Returns a host whose queue pair is not connected.
    pub(crate) fn unconnected(change: impl FnOnce(&mut QpInit)) -> Host {
        Host::of(Config::default(), change)
    }

    /// Returns a host whose engine starts streams carefully, or not.
    pub(crate) fn unconnected_with(careful_start: bool) -> Host {
        let config = Config {
            careful_start,
            ..Config::default()
        };
        Host::of(config, |_| ())
    }

    fn of(config: Config, change: impl FnOnce(&mut QpInit)) -> Host {
        let regions = Arc::new(Regions::new([7; 32]));
        let pd = regions.alloc_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = regions
            .register(
                &pd,
                MemRef::host(BASE),
                SIZE as u64,
                BASE,
                access | Access::MW_BIND,
            )
            .unwrap();
        let (send_cq, recv_cq) = (Cq::new(1, 100).unwrap(), Cq::new(2, 100).unwrap());
        let mut init = QpInit {
            qp_type: QpType::Rc,
            pd: Some(pd.clone()),
            send_cq: Some(send_cq.clone()),
            recv_cq: Some(recv_cq.clone()),
            srq: None,
            xrcd: None,
            cap: CAP,
            sq_sig_all: true,
        };
        change(&mut init);
        let mut engine = Engine::new(config, regions.clone());
        let (qpn, _) = engine.create_qp(&init).unwrap();
        let mut host = Host {
            now: Time::from_nanos(1),
            engine,
            ram: Ram {
                bytes: RefCell::new((0..SIZE).map(|n| (n ^ n >> 8) as u8).collect()),
                holes: RefCell::default(),
            },
            regions,
            pd,
            mr,
            send_cq,
            recv_cq,
            qpn,
        };
        host.modify(QpState::Init).unwrap();
        host
    }

    /// Returns a connected host.
    pub(crate) fn with(params: Params) -> Host {
        let mut host = Host::unconnected(|_| ());
        host.engine
            .connect(host.now, host.qpn, params, MSS)
            .unwrap();
        host
    }

    pub(crate) fn new() -> Host {
        Host::with(PARAMS)
    }

    pub(crate) fn modify(&mut self, state: QpState) -> Result<(), ferroce_objects::VerbsError> {
        let attr = QpAttr {
            state,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE | AttrMask::ACCESS_FLAGS;
        self.engine.modify_qp(self.now, self.qpn, &attr, mask)
    }

    pub(crate) fn state(&self) -> QpState {
        self.engine.query_qp(self.qpn).unwrap().attr.state
    }

    pub(crate) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge {
            addr: BASE + offset,
            length,
            lkey: self.mr.lkey(),
        }
    }

    pub(crate) fn try_post(
        &mut self,
        wr_id: u64,
        op: SendOp,
        flags: SendFlags,
        data: SendData<'_>,
    ) -> Result<(), ferroce_objects::VerbsError> {
        let wr = SendWr {
            wr_id,
            op,
            flags,
            data,
            ud: None,
            xrc_srq: 0,
        };
        self.engine.post_send(self.now, self.qpn, wr)
    }

    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, offset: u64, length: u32) {
        let sges = [self.sge(offset, length)];
        self.try_post(wr_id, op, SendFlags::empty(), SendData::Sges(&sges))
            .unwrap();
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64, offset: u64, length: u32) {
        let sges = [self.sge(offset, length)];
        let wr = RecvWr { wr_id, sges: &sges };
        self.engine.post_recv(self.now, self.qpn, &wr).unwrap();
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.engine.receive(self.now, &self.ram, self.qpn, bytes);
    }

    /// Takes up to `limit` bytes of output, as a socket with so much room does.
    pub(crate) fn send_up_to(&mut self, limit: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.engine.poll_ready().is_some() {}
        while let Some(output) = self.engine.output(self.now, &self.ram, self.qpn, 64 << 10) {
            let now = output.len().min(limit - bytes.len());
            output.copy_to(&self.ram, now, &mut bytes).unwrap();
            self.engine.accepted(self.now, self.qpn, now);
            if now == 0 {
                break;
            }
        }
        bytes
    }

    /// Takes all output.
    pub(crate) fn send_all(&mut self) -> Vec<u8> {
        self.send_up_to(usize::MAX)
    }

    /// Takes all output and returns its FPDUs.
    pub(crate) fn sent(&mut self) -> Vec<(Header, Vec<u8>)> {
        fpdus(&self.send_all())
    }

    /// Returns the error code of the TERMINATE that the host sends as its only FPDU, and
    /// checks that the stream then ends.
    pub(crate) fn terminated(&mut self) -> Terminate {
        let sent = self.sent();
        let [(header, payload)] = &sent[..] else {
            panic!("not one FPDU: {sent:?}");
        };
        assert_eq!(header.opcode, Opcode::Terminate);
        let place = Place::Untagged {
            invalidate: 0,
            queue: 2,
            msn: 1,
            mo: 0,
            read: None,
        };
        assert_eq!(header.place, place);
        assert_eq!(self.state(), QpState::Err);
        let qpn = self.qpn;
        assert_eq!(self.stream_events(), [StreamEvent::Shutdown { qpn }]);
        self.engine.end_of_stream(self.now, qpn);
        let closed = StreamEvent::Closed {
            qpn,
            abort: false,
            cause: CloseCause::Failed,
        };
        assert_eq!(self.stream_events(), [closed]);
        Terminate::decode(payload).unwrap()
    }

    /// Receives an FPDU that must cause a TERMINATE with this code.
    pub(crate) fn refuses(&mut self, header: &Header, payload: &[u8], code: Code) {
        self.stream_events();
        self.receive(&fpdu(header, payload, false));
        let terminate = self.terminated();
        assert_eq!(terminate.code, code);
        let cause = (code.layer < 2).then_some(*header);
        assert_eq!(terminate.cause, cause, "the offending headers");
    }

    /// Returns the stream events except `Established`.
    pub(crate) fn stream_events(&mut self) -> Vec<StreamEvent> {
        let events = std::iter::from_fn(|| self.engine.poll_stream_event());
        events
            .filter(|event| !matches!(event, StreamEvent::Established { .. }))
            .collect()
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }

    pub(crate) fn sends(&self) -> Vec<(u64, WcStatus)> {
        drain(&self.send_cq).iter().map(outcome).collect()
    }

    pub(crate) fn receives(&self) -> Vec<(u64, WcStatus)> {
        drain(&self.recv_cq).iter().map(outcome).collect()
    }
}

fn outcome(wc: &Wc) -> (u64, WcStatus) {
    (wc.wr_id, wc.status)
}

/// Returns all completions of a queue.
pub(crate) fn drain(cq: &Cq) -> Vec<Wc> {
    std::iter::from_fn(|| cq.pop()).collect()
}

/// Moves bytes between two hosts until neither has any.
pub(crate) fn exchange(a: &mut Host, b: &mut Host) {
    loop {
        let (to_b, to_a) = (a.send_all(), b.send_all());
        if to_a.is_empty() && to_b.is_empty() {
            return;
        }
        a.receive(&to_a);
        b.receive(&to_b);
    }
}

/// Returns two connected hosts.
pub(crate) fn pair(crc: bool) -> (Host, Host) {
    let params = |role| Params {
        role,
        crc,
        ..PARAMS
    };
    (
        Host::with(params(Role::Initiator)),
        Host::with(params(Role::Responder)),
    )
}

/// Returns the FPDU of a header and its payload.
pub(crate) fn fpdu(header: &Header, payload: &[u8], crc: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.encode(&mut bytes);
    bytes.extend(payload);
    bytes.resize(bytes.len() + padding(header.ulpdu_len().into()), 0);
    let crc = if crc { crc::of(&bytes) } else { [0; 4] };
    bytes.extend(crc);
    bytes
}

#[derive(Default)]
struct Collected(Vec<(Header, Vec<u8>)>);

impl Sink for Collected {
    type Error = FpduError;

    fn begin(&mut self, header: &Header) -> Result<(), FpduError> {
        self.0.push((*header, Vec::new()));
        Ok(())
    }

    fn place(&mut self, payload: &[u8]) -> Result<(), FpduError> {
        self.0.last_mut().unwrap().1.extend(payload);
        Ok(())
    }

    fn end(&mut self) -> Result<(), FpduError> {
        Ok(())
    }
}

/// Returns the FPDUs of a stream without CRCs.
pub(crate) fn fpdus(bytes: &[u8]) -> Vec<(Header, Vec<u8>)> {
    let mut collected = Collected::default();
    FpduReader::new(false).read(bytes, &mut collected).unwrap();
    collected.0
}

/// Returns the header of a SEND segment.
pub(crate) fn send(opcode: Opcode, msn: u32, mo: u32, last: bool, payload: u32) -> Header {
    Header {
        opcode,
        last,
        place: Place::Untagged {
            invalidate: 0,
            queue: 0,
            msn,
            mo,
            read: None,
        },
        payload,
    }
}
