//! Creation of queue pairs: checks the requested sizes, and grants those that rxe would grant.

use core::net::{IpAddr, Ipv4Addr};

use ferroce_wire::Flow;

use super::cursor::Requester;
use super::ecn::Notifications;
use super::responder::Responder;
use super::{Due, PeerPort, Qp, RetryCounts, RunArrival};
use crate::attr::{QpAttr, QpCap, QpInit, QpState, QpType};
use crate::engine::Config;
use crate::error::VerbsError;
use crate::recv_queue::RecvRing;
use crate::room;
use crate::send_queue::SendQueue;
use crate::timers::TimerSlot;
use crate::transmit::Path;
use crate::verbs::MAX_SGE;

/// Maximum number of work requests in a queue.
const MAX_WR: u32 = 1 << 20;
/// Maximum inline data of a work request, in bytes.
const MAX_INLINE: u32 = 512;

impl Qp {
    /// Creates a queue pair in RESET.
    pub(crate) fn new(init: &QpInit, config: &Config) -> Result<Qp, VerbsError> {
        check_init(init)?;
        room::for_an_object("bytes of a queue pair")?;
        Qp::with_sizes(init, granted_cap(init), config)
    }

    /// Returns a placeholder for an empty slot of the table, without number or queues.
    pub(crate) fn placeholder() -> Qp {
        let cap = QpCap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
        };
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: None,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: false,
        };
        Qp::with_sizes(&init, cap, &Config::default())
            .expect("queues without entries allocate nothing")
    }

    fn with_sizes(init: &QpInit, cap: QpCap, config: &Config) -> Result<Qp, VerbsError> {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Ok(Qp {
            attr: QpAttr::default(),
            qpn: 0,
            mtu: config.port_mtu.bytes() as u32,
            kind: init.qp_type,
            state: QpState::Reset,
            sig_all: init.sq_sig_all,
            due: Due::empty(),
            cq_overflow: false,
            local_peer: 0,
            run_arrival: RunArrival::default(),
            peer_ip_id: 0,
            pd: init.pd.clone(),
            send_cq: init.send_cq.clone(),
            recv_cq: init.recv_cq.clone(),
            srq: init.srq.clone(),
            path: Path::new(
                Flow {
                    source: nowhere,
                    destination: nowhere,
                    source_port: 0,
                },
                0,
                0,
            ),
            rx_icrc: None,
            source_port: None,
            peer_port: PeerPort::ANY,
            timer: TimerSlot::default(),
            req: Requester::new(config, config.port_mtu.bytes() as u32),
            sq: SendQueue::new(&cap, init.qp_type.is_datagram())?,
            rq: RecvRing::new(cap.max_recv_wr, cap.max_recv_sge)?,
            resp: Responder::default(),
            xrcd: init.xrcd.clone(),
            cap,
            notifications: Notifications::default(),
            retry_counts: RetryCounts::default(),
        })
    }
}

/// Checks the type, queues and sizes of a new queue pair.
fn check_init(init: &QpInit) -> Result<(), VerbsError> {
    let cap = &init.cap;
    for (what, value, most) in [
        ("max_send_wr", cap.max_send_wr, MAX_WR),
        ("max_recv_wr", cap.max_recv_wr, MAX_WR),
        ("max_send_sge", cap.max_send_sge, MAX_SGE as u32),
        ("max_recv_sge", cap.max_recv_sge, MAX_SGE as u32),
        ("max_inline_data", cap.max_inline_data, MAX_INLINE),
    ] {
        if value > most {
            return Err(VerbsError::invalid(format!(
                "{what} {value}, at most {most} is possible"
            )));
        }
    }
    let sends = init.qp_type != QpType::XrcTarget;
    let receives = !matches!(init.qp_type, QpType::XrcTarget | QpType::XrcInitiator);
    let complaint = if sends && init.pd.is_none() {
        "no protection domain"
    } else if sends && init.send_cq.is_none() {
        "no completion queue for sends"
    } else if receives && init.recv_cq.is_none() {
        "no completion queue for receives"
    } else if init.qp_type == QpType::XrcTarget && init.xrcd.is_none() {
        "an XRC target without an XRC domain"
    } else if !receives && init.srq.is_some() {
        "an XRC queue pair names shared receive queues in its packets, it has none of its own"
    } else if init.srq.as_ref().is_some_and(|srq| srq.xrc_cq().is_some()) {
        "an XRC shared receive queue serves XRC targets only"
    } else {
        return Ok(());
    };
    Err(VerbsError::invalid(complaint))
}

/// Returns the sizes that rxe would grant: inline data and gather lists share their space,
/// 16 bytes per element.
fn granted_cap(init: &QpInit) -> QpCap {
    let mut cap = init.cap;
    if init.qp_type == QpType::XrcTarget {
        cap.max_send_wr = 0;
    }
    let receives = !matches!(init.qp_type, QpType::XrcTarget | QpType::XrcInitiator);
    if init.srq.is_some() || !receives {
        cap.max_recv_wr = 0;
        cap.max_recv_sge = 0;
    }
    cap.max_inline_data = cap
        .max_inline_data
        .max(cap.max_send_sge * 16)
        .min(MAX_INLINE);
    cap.max_send_sge = cap.max_send_sge.max(cap.max_inline_data / 16);
    cap
}
