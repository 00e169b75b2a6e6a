//! Fuzz drivers: arbitrary bytes as MPA frames, as FPDUs, and as the stream of a queue pair.
//! Proptests and the fuzz targets `mpa_frame` and `fpdu_stream` use them.

use std::cell::RefCell;
use std::sync::Arc;

use ferroce_iwarp::crc;
use ferroce_iwarp::fpdu::{FpduError, FpduReader, Sink, fpdu_len};
use ferroce_iwarp::header::Header;
use ferroce_iwarp::mpa::{
    Answer, Frame, FrameKind, Initiator, Offer, Params, Replied, Responder, Role,
};
use ferroce_iwarp::{Config, Engine, Time};
use ferroce_objects::{
    Access, AttrMask, Cq, Fault, MemRef, Memory, MemorySpace, Mr, QpAttr, QpCap, QpInit, QpState,
    QpType, RecvWr, Regions, SendData, SendFlags, SendOp, SendWr, Sge,
};

/// Checks that a parsed MPA frame is encoded to the same bytes, and that both ends of a setup
/// come to the same result however the bytes are cut.
pub(crate) fn mpa_frame(data: &[u8]) {
    for kind in [FrameKind::Request, FrameKind::Reply] {
        if let Ok(frame) = Frame::decode(data, kind) {
            assert_eq!(frame.encode(), data);
        }
    }
    let mut responder = Responder::new(Time::ZERO);
    let whole = responder.receive(data);
    let mut slow = Responder::new(Time::ZERO);
    let mut cut = Ok(None);
    for byte in data {
        match slow.receive(&[*byte]) {
            Ok(None) => {}
            other => cut = other,
        }
        if cut.is_err() {
            break;
        }
    }
    // Bytes behind a Request are an error, whose text counts those of one call.
    assert_eq!(whole.is_err(), cut.is_err());
    if let (Ok(whole), Ok(cut)) = (&whole, &cut) {
        assert_eq!(whole, cut);
        if whole.is_some() {
            let reply = responder.accept(&Answer::default()).expect("valid").0;
            assert!(Frame::decode(&reply, FrameKind::Reply).is_ok());
        }
    }
    let offer = Offer::default();
    let mut initiator = Initiator::new(Time::ZERO, &offer).expect("valid");
    if let Ok(Replied::Accepted { taken, params, .. }) = initiator.receive(data) {
        assert!(taken <= data.len() && params.ird <= 128 && params.ord <= 128);
    }
}

/// A sink that collects FPDUs and checks the order of their parts.
#[derive(Default)]
struct Collected {
    fpdus: Vec<(Header, Vec<u8>)>,
    open: bool,
}

impl Sink for Collected {
    type Error = FpduError;

    fn begin(&mut self, header: &Header) -> Result<(), FpduError> {
        assert!(!self.open, "an FPDU begins before the end of another");
        self.open = true;
        self.fpdus.push((*header, Vec::new()));
        Ok(())
    }

    fn place(&mut self, payload: &[u8]) -> Result<(), FpduError> {
        assert!(self.open && !payload.is_empty());
        let (_, placed) = self.fpdus.last_mut().expect("begun");
        placed.extend(payload);
        Ok(())
    }

    fn end(&mut self) -> Result<(), FpduError> {
        assert!(self.open, "an FPDU ends before it begins");
        self.open = false;
        let (header, placed) = self.fpdus.last().expect("begun");
        assert_eq!(placed.len(), header.payload as usize);
        Ok(())
    }
}

/// Checks that a stream has the same FPDUs, and the same error, however it is cut.
pub(crate) fn fpdus(crc: bool, bytes: &[u8], cuts: &[u8]) {
    let mut whole = Collected::default();
    let whole_result = FpduReader::new(crc).read(bytes, &mut whole);
    let mut cut = Collected::default();
    let mut reader = FpduReader::new(crc);
    let (mut rest, mut cut_result, mut next) = (bytes, Ok(()), cuts.iter().cycle());
    while !rest.is_empty() && cut_result.is_ok() {
        let length = next.next().map_or(1, |n| usize::from(*n) + 1);
        let (part, behind) = rest.split_at(length.min(rest.len()));
        cut_result = reader.read(part, &mut cut);
        rest = behind;
    }
    assert_eq!(whole_result, cut_result);
    assert_eq!(whole.fpdus, cut.fpdus);
}

/// Memory of 128 KiB, of which the middle half is registered.
struct Ram(RefCell<Vec<u8>>);

const START: u64 = 0x8000;
const LENGTH: u64 = 0x1_0000;

impl Ram {
    fn range(at: MemRef, length: usize) -> std::ops::Range<usize> {
        assert_eq!(at.space(), MemorySpace::Host);
        let end = at.addr() + length as u64;
        assert!(
            START <= at.addr() && end <= START + LENGTH,
            "{:#x}+{length} is not registered",
            at.addr()
        );
        at.addr() as usize..end as usize
    }
}

impl Memory for Ram {
    fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault> {
        into.copy_from_slice(&self.0.borrow()[Ram::range(at, into.len())]);
        Ok(())
    }

    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault> {
        self.0.borrow_mut()[Ram::range(at, data.len())].copy_from_slice(data);
        Ok(())
    }

    fn compare_swap(&self, at: MemRef, _: u64, _: u64) -> Result<u64, Fault> {
        panic!("an atomic at {at}")
    }

    fn fetch_add(&self, at: MemRef, _: u64) -> Result<u64, Fault> {
        panic!("an atomic at {at}")
    }

    fn store_release(&self, at: MemRef, _: [u8; 8]) -> Result<(), Fault> {
        panic!("an atomic write at {at}")
    }

    fn flush(&self, at: MemRef, _: u64, _: bool) -> Result<(), Fault> {
        panic!("a flush at {at}")
    }
}

/// Work requests of each kind that the queue pair has.
const POSTED: usize = 6;

/// Delivers `data` as the stream of a queue pair. The first byte says whether CRCs are used.
/// Then each FPDU has two bytes that say how it is made, and its content.
///
/// FPDUs pass as many checks as possible: with a right length and CRC, a valid STag, a low
/// offset and a low MSN. The driver checks that no access leaves registered memory, that
/// sending ends, and that each work request completes once.
pub(crate) fn stream(data: &[u8]) {
    let Some((first, mut data)) = data.split_first() else {
        return;
    };
    let crc = first & 1 != 0;
    fpdus(crc, data, &[first >> 1, 0, 60]);
    let mut host = Host::new(crc);
    while let [how, length, rest @ ..] = data {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        data = rest;
        host.deliver(*how, body);
        if how & 0x40 != 0 {
            host.transmit();
        }
    }
    host.transmit();
    host.engine.end_of_stream(host.now, host.qpn);
    while let Some(time) = host.engine.next_timeout() {
        host.engine.handle_timeout(time);
    }
    let completed = host.cq.len();
    assert_eq!(completed, 2 * POSTED, "each work request completes once");
}

struct Host {
    now: Time,
    engine: Engine,
    ram: Ram,
    mr: Arc<Mr>,
    cq: Arc<Cq>,
    qpn: u32,
    crc: bool,
}

impl Host {
    fn new(crc: bool) -> Host {
        let regions = Arc::new(Regions::new([0; 32]));
        let pd = regions.alloc_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = regions.register(&pd, MemRef::host(START), LENGTH, START, access);
        let mr = mr.expect("valid");
        let mut engine = Engine::new(Config::default(), regions);
        let cq = Cq::new(1, 100).expect("valid");
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: Some(pd),
            send_cq: Some(cq.clone()),
            recv_cq: Some(cq.clone()),
            srq: None,
            xrcd: None,
            cap: QpCap {
                max_send_wr: 8,
                max_recv_wr: 8,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: true,
        };
        let now = Time::from_nanos(1);
        let (qpn, _) = engine.create_qp(&init).expect("valid");
        let attr = QpAttr {
            state: QpState::Init,
            access,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE | AttrMask::ACCESS_FLAGS;
        engine.modify_qp(now, qpn, &attr, mask).expect("valid");
        let params = Params {
            role: Role::Initiator,
            crc,
            ird: 2,
            ord: 4,
            rtr: None,
        };
        engine.connect(now, qpn, params, 256).expect("valid");
        let mut host = Host {
            now,
            engine,
            ram: Ram(RefCell::new(vec![0; 0x2_0000])),
            mr,
            cq,
            qpn,
            crc,
        };
        host.post();
        host.transmit();
        host
    }

    /// Posts receives, and READs to which bytes in `data` may be responses.
    fn post(&mut self) {
        let sges = [Sge {
            addr: START,
            length: 64,
            lkey: self.mr.lkey(),
        }];
        for wr_id in 0..POSTED as u64 {
            let recv = RecvWr { wr_id, sges: &sges };
            let posted = self.engine.post_recv(self.now, self.qpn, &recv);
            posted.expect("the queue has room");
            let send = SendWr {
                wr_id,
                op: SendOp::Read {
                    remote_addr: 0,
                    rkey: 1,
                },
                flags: SendFlags::empty(),
                data: SendData::Sges(&sges),
                ud: None,
                xrc_srq: 0,
            };
            let posted = self.engine.post_send(self.now, self.qpn, send);
            posted.expect("the queue has room");
        }
    }

    /// Makes an FPDU of the bytes and delivers it in two parts.
    fn deliver(&mut self, how: u8, body: &[u8]) {
        let mut bytes = body.to_vec();
        if how & 1 == 0 {
            bytes.resize(bytes.len().max(4), 0);
            self.make_plausible(how, &mut bytes);
            let ulpdu = bytes.len() - 2;
            bytes[..2].copy_from_slice(&(ulpdu as u16).to_be_bytes());
            bytes.resize(fpdu_len(ulpdu) - 4, 0);
            let trailer = match self.crc && how & 2 == 0 {
                true => crc::of(&bytes),
                false => [0; 4],
            };
            bytes.extend(trailer);
        }
        let (first, second) = bytes.split_at(bytes.len() * usize::from(how >> 4 & 3) / 4);
        for part in [first, second] {
            self.engine.receive(self.now, &self.ram, self.qpn, part);
        }
        while self.engine.poll_event().is_some() {}
        while self.engine.poll_stream_event().is_some() {}
    }

    /// Writes a valid control word, STag, offset, queue and MSN into the headers.
    fn make_plausible(&self, how: u8, bytes: &mut Vec<u8>) {
        const WORDS: [u16; 8] = [
            0xc140, 0x4141, 0xc142, 0x4143, 0x4144, 0x4145, 0x8140, 0x0143,
        ];
        let word = WORDS[usize::from(bytes[3] & 7)];
        bytes[2..4].copy_from_slice(&word.to_be_bytes());
        let length = match word & 0xf {
            0 | 2 => 16,
            1 => 48,
            _ => 20,
        };
        if how & 4 != 0 {
            return;
        }
        bytes.resize(bytes.len().max(length), 0);
        let key = self.mr.rkey().to_be_bytes();
        match word & 0xf {
            0 | 2 => {
                bytes[4..8].copy_from_slice(&key);
                bytes[8..13].fill(0);
            }
            queue => {
                let number = u32::from(queue == 1);
                bytes[8..12].copy_from_slice(&number.to_be_bytes());
                bytes[12..15].fill(0);
                bytes[15] &= 3;
                bytes[16..20].fill(0);
                if queue == 1 {
                    bytes[32..34].fill(0);
                    bytes[36..40].copy_from_slice(&key);
                    bytes[40..45].fill(0);
                    bytes.truncate(48);
                }
            }
        }
    }

    /// Sends all bytes that the engine has to send.
    fn transmit(&mut self) {
        for _ in 0..1000 {
            let output = self
                .engine
                .output(self.now, &self.ram, self.qpn, 4096)
                .filter(|output| !output.is_empty());
            let Some(output) = output else {
                return;
            };
            let length = output.len().min(700);
            let mut bytes = Vec::new();
            let copied = output.copy_to(&self.ram, length, &mut bytes);
            assert!(copied.is_ok() && bytes.len() == length);
            self.engine.accepted(self.now, self.qpn, length);
        }
        panic!("the engine still has bytes to send after 1000 calls");
    }
}
