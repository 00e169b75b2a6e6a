//! Queue pairs of ids: creation, attributes for each state, and the transitions that rdma_cm
//! makes.

use std::sync::{Arc, Weak};

use ferroce_cm::{Gid, QpParameters};
use ferroce_device::transport::{Access, AttrMask, Pd, QpAttr, QpCap, QpInit, QpState, QpType};
use ferroce_device::{AhAttr, Cq, Qp};
use ferroce_wire::{Mtu, Psn};

use crate::devices::LinkDevice;
use crate::error::{Error, ErrorKind, no_address, no_device};
use crate::id::{Id, Inner, Shared, State};

/// The queue pair of an id.
#[derive(Debug, Default)]
pub(crate) enum AttachedQp {
    #[default]
    None,
    /// Created by [`Id::create_qp`].
    Owned(Arc<Qp>),
    /// Named by [`Id::attach_qp`]; the program keeps it alive.
    Borrowed(Weak<Qp>),
}

impl AttachedQp {
    fn get(&self) -> Option<Arc<Qp>> {
        match self {
            AttachedQp::None => None,
            AttachedQp::Owned(qp) => Some(Arc::clone(qp)),
            AttachedQp::Borrowed(qp) => qp.upgrade(),
        }
    }
}

/// Sizes and completion queues of a new queue pair.
#[derive(Debug, Clone)]
pub struct QpConfig<'a> {
    /// Protection domain; None for the one that all ids on the link share.
    pub pd: Option<&'a Arc<Pd>>,
    /// Completion queue of the send queue.
    pub send_cq: &'a Arc<Cq>,
    /// Completion queue of the receive queue.
    pub recv_cq: &'a Arc<Cq>,
    /// Sizes.
    pub cap: QpCap,
    /// True if every send completes with a completion.
    pub sq_sig_all: bool,
}

/// Attributes for a transition of a queue pair.
#[derive(Debug, Clone, Copy)]
pub struct QpAttributes {
    /// The attributes that `mask` names.
    pub attr: QpAttr,
    /// The attributes that are valid.
    pub mask: AttrMask,
    /// Address of the peer, if `mask` contains [`AttrMask::AV`].
    pub ah: Option<AhAttr>,
}

/// READs and atomics that `accept` has agreed to: those that our responder serves, and those
/// that our requester may have outstanding.
pub(crate) type Depths = (u8, u8);

impl Id {
    /// Creates the queue pair of the id and moves it to INIT; one for datagrams to RTS. The
    /// id keeps it until it is dropped or [`Id::detach_qp`] is called.
    pub fn create_qp(&self, config: &QpConfig<'_>) -> Result<Arc<Qp>, Error> {
        let id = self.usable()?;
        let device = id.inner().device.clone().ok_or_else(no_device)?;
        if id.qp().is_some() {
            return Err(Error::invalid("the id has a queue pair already"));
        }
        let init = QpInit {
            qp_type: id.qp_type,
            pd: Some(Arc::clone(config.pd.unwrap_or_else(|| device.pd()))),
            send_cq: Some(Arc::clone(config.send_cq.queue())),
            recv_cq: Some(Arc::clone(config.recv_cq.queue())),
            srq: None,
            xrcd: None,
            cap: config.cap,
            sq_sig_all: config.sq_sig_all,
        };
        let cqs = [config.send_cq, config.recv_cq];
        let qp = Arc::new(device.device().create_qp(&init, &cqs)?);
        self.initialize_qp(&qp)?;
        id.inner().qp = AttachedQp::Owned(Arc::clone(&qp));
        Ok(qp)
    }

    /// Names a queue pair of the program's as that of the id, or none. The id does not keep
    /// it alive.
    pub fn attach_qp(&self, qp: Option<&Arc<Qp>>) {
        self.shared().inner().qp = match qp {
            Some(qp) => AttachedQp::Borrowed(Arc::downgrade(qp)),
            None => AttachedQp::None,
        };
    }

    /// Returns the queue pair of the id.
    pub fn qp(&self) -> Option<Arc<Qp>> {
        self.shared().qp()
    }

    /// Removes the queue pair from the id. It is destroyed when its last clone is dropped.
    pub fn detach_qp(&self) {
        // Not dropped while the id is locked: destroying a queue pair takes other locks.
        let _detached = core::mem::take(&mut self.shared().inner().qp);
    }

    /// Moves a new queue pair to INIT; one for datagrams on to RTS.
    pub fn initialize_qp(&self, qp: &Qp) -> Result<(), Error> {
        let id = self.shared();
        let QpAttributes { mut attr, mask, .. } = attributes(id, QpState::Init)?;
        qp.modify(&attr, mask, None)?;
        if id.is_datagram() {
            attr.state = QpState::Rtr;
            qp.modify(&attr, AttrMask::STATE, None)?;
            attr.state = QpState::Rts;
            attr.sq_psn = Psn::new(0);
            qp.modify(&attr, AttrMask::STATE | AttrMask::SQ_PSN, None)?;
        }
        Ok(())
    }

    /// Returns the attributes for the transition of the queue pair to `state`, for programs
    /// that move it themselves.
    pub fn qp_attributes(&self, state: QpState) -> Result<QpAttributes, Error> {
        attributes(self.usable()?, state)
    }
}

impl Shared {
    pub(crate) fn qp(&self) -> Option<Arc<Qp>> {
        self.inner().qp.get()
    }
}

fn attributes(id: &Shared, state: QpState) -> Result<QpAttributes, Error> {
    let inner = id.inner();
    let mut attr = QpAttr {
        state,
        ..QpAttr::default()
    };
    if inner.device.is_none() {
        return Err(no_device());
    }
    if inner.device.as_ref().is_some_and(LinkDevice::is_iwarp) {
        attr.access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        // The connection moves the queue pair to RTS, so a program that does so changes nothing.
        let mask = match state {
            QpState::Init | QpState::Rtr => AttrMask::STATE | AttrMask::ACCESS_FLAGS,
            _ => AttrMask::empty(),
        };
        let ah = None;
        return Ok(QpAttributes { attr, mask, ah });
    }
    let connected = inner.conn.is_some() && !id.is_datagram();
    if !connected {
        let mut mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT;
        if id.is_datagram() {
            attr.qkey = id.space.default_qkey().unwrap_or(0);
            mask |= AttrMask::QKEY;
        } else {
            mask |= AttrMask::ACCESS_FLAGS;
        }
        let ah = None;
        return Ok(QpAttributes { attr, mask, ah });
    }
    let parameters = || {
        inner.qp_parameters.ok_or_else(|| {
            Error::invalid("the peer's queue pair is not known before the connection is accepted")
        })
    };
    let mut ah = None;
    let mask = match state {
        QpState::Init => {
            attr.access = Access::REMOTE_WRITE;
            let served = match inner.qp_parameters {
                Some(qp) if inner.state == State::Connect => qp.responder_resources,
                _ => inner.responder_resources,
            };
            if served > 0 {
                attr.access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            }
            AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS
        }
        QpState::Rtr => {
            let qp = parameters()?;
            ah = Some(peer_address(&inner, &qp)?);
            attr.path_mtu = Mtu::from_enum(qp.path_mtu.into())
                .ok_or_else(|| Error::invalid(format!("path MTU {} is unknown", qp.path_mtu)))?;
            attr.dest_qpn = qp.remote_qpn;
            attr.rq_psn = Psn::new(qp.rq_psn);
            let mut mask = AttrMask::STATE
                | AttrMask::AV
                | AttrMask::PATH_MTU
                | AttrMask::DEST_QPN
                | AttrMask::RQ_PSN;
            if matches!(id.qp_type, QpType::Rc | QpType::XrcTarget) {
                attr.max_dest_rd_atomic = qp.responder_resources;
                attr.min_rnr_timer = 0;
                mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
            }
            mask
        }
        QpState::Rts => {
            let qp = parameters()?;
            attr.sq_psn = Psn::new(qp.sq_psn);
            let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
            if matches!(id.qp_type, QpType::Rc | QpType::XrcInitiator) {
                attr.retry_cnt = qp.retry_count;
                attr.rnr_retry = qp.rnr_retry_count;
                attr.max_rd_atomic = qp.initiator_depth;
                mask |= AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
            }
            if id.qp_type.is_reliable() {
                attr.timeout = qp.timeout;
                mask |= AttrMask::TIMEOUT;
            }
            mask
        }
        _ => {
            return Err(Error::invalid(format!(
                "rdma_cm has no attributes for state {state:?}"
            )));
        }
    };
    Ok(QpAttributes { attr, mask, ah })
}

/// Returns the address of the peer of a connection.
fn peer_address(inner: &Inner, qp: &QpParameters) -> Result<AhAttr, Error> {
    let address = inner.address.ok_or_else(no_address)?;
    Ok(AhAttr {
        sgid_index: sgid_index(inner)?,
        dgid: Gid::from(address.remote).0,
        flow_label: qp.flow_label,
        hop_limit: qp.hop_limit,
        traffic_class: qp.traffic_class,
        sl: qp.sl,
        port: 1,
    })
}

/// Returns the index of the local address in the GID table.
pub(crate) fn sgid_index(inner: &Inner) -> Result<u8, Error> {
    let (Some(device), Some(address)) = (&inner.device, inner.address) else {
        return Err(Error::invalid("the id has no device or no address yet"));
    };
    let link = device.link();
    let mut gids = link.gids.iter();
    let gid = gids.find(|gid| gid.address == address.local);
    let gid = gid.ok_or_else(|| {
        Error::new(
            ErrorKind::AddressNotAvailable,
            format!("{} is no longer in the GID table", address.local),
        )
    })?;
    u8::try_from(gid.index).map_err(|_| {
        Error::new(
            ErrorKind::AddressNotAvailable,
            format!("GID index {} is above 255", gid.index),
        )
    })
}

/// Moves the queue pair, if the id has one, to INIT, RTR and RTS.
pub(crate) fn to_rts(id: &Shared, depths: Option<Depths>) -> Result<(), Error> {
    let Some(qp) = id.qp() else { return Ok(()) };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let QpAttributes { mut attr, mask, ah } = attributes(id, state)?;
        if let Some((served, outstanding)) = depths {
            attr.max_dest_rd_atomic = served;
            attr.max_rd_atomic = outstanding;
        }
        qp.modify(&attr, mask, ah.as_ref())?;
    }
    Ok(())
}

/// Moves the queue pair, if the id has one, to ERR.
pub(crate) fn to_error(id: &Shared) -> Result<(), Error> {
    let Some(qp) = id.qp() else { return Ok(()) };
    let attr = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    Ok(qp.modify(&attr, AttrMask::STATE, None)?)
}
