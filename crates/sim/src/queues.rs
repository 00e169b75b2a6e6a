//! Creation of completion queues, shared receive queues and XRC domains.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferroce_roce::{Cq, QpType, Srq, SrqInit, Time, Xrcd};

use crate::model::{CqMode, CqModel, SrqModel};
use crate::world::World;

/// Size of a completion queue that must not overflow.
const LARGE_CQ: u32 = 4095;

impl World {
    /// Returns a completion queue: a new one, or one that other queue pairs use.
    pub(crate) fn new_or_shared_cq(&mut self, host: usize, small: bool) -> usize {
        let same_kind = |cq: &CqModel| cq.host == host && cq.small == small;
        match self.cqs.iter().position(same_kind) {
            Some(cq) if self.rng.chance(0.3) => cq,
            _ => self.add_cq(host, small),
        }
    }

    fn add_cq(&mut self, host: usize, small: bool) -> usize {
        let size = match small {
            true => self.rng.range(1..=12) as u32,
            false => LARGE_CQ,
        };
        let modes = [CqMode::Polled, CqMode::Any, CqMode::Solicited];
        let mode = match self.scenario.features.notifications && !small {
            true => self.rng.pick(&modes),
            false => CqMode::Polled,
        };
        let id = self.cqs.len();
        self.cqs.push(CqModel {
            host,
            cq: Cq::new(id as u32, size).expect("a size that is possible"),
            mode,
            notified: true, // the program polls once, and so arms the queue
            armed: false,
            latest: Time::ZERO,
            small,
            overflowed: false,
        });
        id
    }

    fn add_srq(&mut self, host: usize, recv_size: u64, xrc: Option<(usize, usize)>) -> usize {
        let number = self.srqs.len() as u32 + 0x100;
        let domain = xrc.as_ref().map(|(domain, cq)| (*domain, *cq));
        let init = SrqInit {
            max_wr: 64,
            max_sge: 4,
            xrc: xrc.map(|(domain, cq)| {
                (
                    Arc::clone(&self.domains[domain].1),
                    Arc::clone(&self.cqs[cq].cq),
                )
            }),
        };
        let pd = Arc::clone(&self.hosts[host].pd);
        self.srqs.push(SrqModel {
            host,
            srq: Srq::new(number, pd, init).expect("a size that is possible"),
            xrc: domain,
            recv_size,
            outstanding: BTreeSet::new(),
            posted: 0,
            may_be_lost: 0,
            limit_armed: false,
        });
        self.srqs.len() - 1
    }

    /// Returns an XRC domain of the host with one or two shared receive queues: a
    /// new domain, or one that other queue pairs use.
    pub(crate) fn new_or_shared_domain(&mut self, host: usize, recv_size: u64, cq: usize) -> usize {
        let fits = |domain: &usize| {
            let big = |srq: &usize| self.srqs[*srq].recv_size >= recv_size;
            self.domains[*domain].0 == host && self.srqs_of_domain(*domain).iter().all(big)
        };
        if let Some(domain) = (0..self.domains.len()).find(fits)
            && self.rng.chance(0.5)
        {
            return domain;
        }
        let domain = self.domains.len();
        self.domains.push((host, Xrcd::new()));
        for _ in 0..self.rng.range(1..=2) {
            self.add_srq(host, recv_size, Some((domain, cq)));
        }
        domain
    }

    /// Returns the shared receive queues of an XRC domain.
    pub(crate) fn srqs_of_domain(&self, domain: usize) -> Vec<usize> {
        let inside = |srq: &usize| self.srqs[*srq].xrc.is_some_and(|(d, _)| d == domain);
        (0..self.srqs.len()).filter(inside).collect()
    }

    /// Returns a shared receive queue of the host for queue pairs of this type.
    pub(crate) fn shared_srq(&mut self, host: usize, kind: QpType, recv_size: u64) -> usize {
        let users = self
            .qps
            .iter()
            .filter(|qp| qp.host == host && qp.kind == kind);
        let found = users.filter_map(|qp| qp.srq).next();
        match found {
            Some(srq) if self.srqs[srq].recv_size >= recv_size => srq,
            _ => self.add_srq(host, recv_size, None),
        }
    }
}
