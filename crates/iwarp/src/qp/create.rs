//! Creation of queue pairs: checks the requested sizes against those of siw.

use ferroce_objects::recv_queue::RecvRing;
use ferroce_objects::send_queue::SendQueue;
use ferroce_objects::{QpAttr, QpCap, QpInit, QpState, QpType, VerbsError, room};

use super::Qp;

/// Maximum number of work requests in a queue, as in siw.
pub const MAX_WR: u32 = 1 << 15;
/// Maximum number of scatter/gather elements, as in siw.
pub const MAX_SGE: u32 = 6;
/// Maximum inline data of a work request in bytes, as in siw.
pub const MAX_INLINE: u32 = 80;

impl Qp {
    /// Creates a queue pair in RESET.
    pub(crate) fn new(qpn: u32, init: &QpInit) -> Result<Qp, VerbsError> {
        if init.qp_type != QpType::Rc {
            return Err(VerbsError::NotSupported(format!(
                "{:?} queue pairs; iWARP has RC queue pairs only",
                init.qp_type
            )));
        }
        let missing = |what| VerbsError::invalid(format!("no {what}"));
        let pd = init
            .pd
            .clone()
            .ok_or_else(|| missing("protection domain"))?;
        let send_cq = init.send_cq.clone();
        let send_cq = send_cq.ok_or_else(|| missing("completion queue for sends"))?;
        let recv_cq = init.recv_cq.clone();
        let recv_cq = recv_cq.ok_or_else(|| missing("completion queue for receives"))?;
        if init.srq.as_ref().is_some_and(|srq| srq.xrc_cq().is_some()) {
            let why = "an XRC shared receive queue serves XRC targets only";
            return Err(VerbsError::invalid(why));
        }
        let cap = granted_cap(init)?;
        room::for_an_object("bytes of a queue pair")?;
        Ok(Qp {
            qpn,
            state: QpState::Reset,
            attr: QpAttr::default(),
            cap,
            sig_all: init.sq_sig_all,
            in_ready_list: false,
            cq_overflow: false,
            pd,
            send_cq,
            recv_cq,
            srq: init.srq.clone(),
            sq: SendQueue::new(&cap, false)?,
            popped: 0,
            rq: RecvRing::new(cap.max_recv_wr, cap.max_recv_sge)?,
            stream: None,
        })
    }
}

/// Returns the sizes that siw would grant.
fn granted_cap(init: &QpInit) -> Result<QpCap, VerbsError> {
    let cap = init.cap;
    for (what, value, most) in [
        ("max_send_wr", cap.max_send_wr, MAX_WR),
        ("max_recv_wr", cap.max_recv_wr, MAX_WR),
        ("max_send_sge", cap.max_send_sge, MAX_SGE),
        ("max_recv_sge", cap.max_recv_sge, MAX_SGE),
        ("max_inline_data", cap.max_inline_data, MAX_INLINE),
    ] {
        if value > most {
            return Err(VerbsError::invalid(format!(
                "{what} {value}, at most {most} is possible"
            )));
        }
    }
    let own_receives = init.srq.is_none();
    Ok(QpCap {
        max_recv_wr: if own_receives { cap.max_recv_wr } else { 0 },
        max_recv_sge: if own_receives { cap.max_recv_sge } else { 0 },
        // siw grants the largest size to every queue pair.
        max_inline_data: MAX_INLINE,
        ..cap
    })
}
