//! Shared receive queues, and the domains that XRC queue pairs share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::cq::Cq;
use crate::error::VerbsError;
use crate::recv_queue::{HeldRecv, RecvRing};
use crate::region::Pd;
use crate::room;
use crate::verbs::RecvWr;

/// Most receives a shared queue may hold.
pub const MAX_SRQ_WR: u32 = 1 << 20;
/// Most scatter elements of one of its receives.
pub const MAX_SRQ_SGE: u32 = 27;

/// An XRC domain: the shared receive queues that its targets may name.
#[derive(Debug, Default)]
pub struct Xrcd {
    srqs: Mutex<BTreeMap<u32, Weak<Srq>>>,
}

impl Xrcd {
    /// A domain without queues.
    pub fn new() -> Arc<Xrcd> {
        Arc::new(Xrcd::default())
    }

    pub(crate) fn srq(&self, number: u32) -> Option<Arc<Srq>> {
        self.lock().get(&number)?.upgrade()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Srq>>> {
        self.srqs
            .lock()
            .expect("no code panics while it holds an XRC domain")
    }
}

/// `ibv_srq_init_attr`.
#[derive(Clone, Debug)]
pub struct SrqInit {
    /// The least number of receives that must fit.
    pub max_wr: u32,
    /// The most scatter elements of a receive.
    pub max_sge: u32,
    /// For an XRC queue: its domain and where its receives complete.
    pub xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
}

/// A shared receive queue: `ibv_srq`.
#[derive(Debug)]
pub struct Srq {
    number: u32,
    pd: Arc<Pd>,
    xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    ring: RecvRing,
    max_wr: u32,
    max_sge: u32,
    limit: u32,
}

/// What taking a receive found.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    Nothing,
    One,
    /// One, and fewer than the limit are left: whoever set it must be told.
    OneBelowLimit,
}

impl Srq {
    /// A shared receive queue. `number` (24 bits) names it in events, and on
    /// the wire if it is an XRC queue.
    pub fn new(number: u32, pd: Arc<Pd>, init: SrqInit) -> Result<Arc<Srq>, VerbsError> {
        check_size(init.max_wr)?;
        if init.max_sge > MAX_SRQ_SGE {
            return Err(VerbsError::invalid(format!(
                "{} scatter elements in a shared receive queue, at most {MAX_SRQ_SGE} are possible",
                init.max_sge
            )));
        }
        room::for_an_object("bytes of a shared receive queue")?;
        let srq = Arc::new(Srq {
            number,
            pd,
            xrc: init.xrc,
            inner: Mutex::new(Inner {
                ring: RecvRing::new(init.max_wr, init.max_sge)?,
                max_wr: init.max_wr,
                max_sge: init.max_sge,
                limit: 0,
            }),
        });
        if let Some((xrcd, _)) = &srq.xrc {
            xrcd.lock().insert(number, Arc::downgrade(&srq));
        }
        Ok(srq)
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Where receives of an XRC queue complete.
    pub fn xrc_cq(&self) -> Option<&Arc<Cq>> {
        self.xrc.as_ref().map(|(_, cq)| cq)
    }

    /// Posts a receive.
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        self.lock().ring.post(wr)
    }

    /// Holds the queue for several posts.
    pub fn posting<T>(&self, work: impl FnOnce(&mut SrqPosting<'_>) -> T) -> T {
        work(&mut SrqPosting(&mut self.lock().ring))
    }

    /// Asks for one event when fewer than `limit` receives are left; 0 asks for none.
    pub fn set_limit(&self, limit: u32) -> Result<(), VerbsError> {
        let mut inner = self.lock();
        if limit > inner.max_wr {
            return Err(VerbsError::invalid(format!(
                "limit {limit} of a shared receive queue for {} receives",
                inner.max_wr
            )));
        }
        inner.limit = limit;
        Ok(())
    }

    /// Changes how many receives fit; refused if those posted would not.
    pub fn resize(&self, max_wr: u32) -> Result<(), VerbsError> {
        check_size(max_wr)?;
        let mut inner = self.lock();
        let posted = inner.ring.len();
        if posted > max_wr as usize || inner.limit > max_wr {
            return Err(VerbsError::invalid(format!(
                "{posted} receives are posted and the limit is {}, the queue cannot shrink to {max_wr}",
                inner.limit
            )));
        }
        inner.ring = inner.ring.resized(max_wr)?;
        inner.max_wr = max_wr;
        Ok(())
    }

    /// `(max_wr, max_sge, limit)`, as `ibv_query_srq` reports them.
    pub fn query(&self) -> (u32, u32, u32) {
        let inner = self.lock();
        (inner.max_wr, inner.max_sge, inner.limit)
    }

    /// How many receives are posted.
    pub fn posted(&self) -> usize {
        self.lock().ring.len()
    }

    pub(crate) fn take(&self, held: &mut HeldRecv) -> Taken {
        let mut inner = self.lock();
        if !inner.ring.take(held) {
            return Taken::Nothing;
        }
        if (inner.ring.len() as u32) < inner.limit {
            inner.limit = 0;
            return Taken::OneBelowLimit;
        }
        Taken::One
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner
            .lock()
            .expect("no code panics while it holds a shared receive queue")
    }
}

/// A shared receive queue that is held for several posts.
#[derive(Debug)]
pub struct SrqPosting<'a>(&'a mut RecvRing);

impl SrqPosting<'_> {
    /// Posts a receive.
    #[inline]
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        self.0.post(wr)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if let Some((xrcd, _)) = &self.xrc {
            xrcd.lock().remove(&self.number);
        }
    }
}

fn check_size(max_wr: u32) -> Result<(), VerbsError> {
    if max_wr == 0 || max_wr > MAX_SRQ_WR {
        return Err(VerbsError::invalid(format!(
            "{max_wr} receives in a shared receive queue, between 1 and {MAX_SRQ_WR} are possible"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Regions;

    fn srq(max_wr: u32) -> Arc<Srq> {
        let init = SrqInit {
            max_wr,
            max_sge: 1,
            xrc: None,
        };
        Srq::new(7, Regions::new([0; 32]).alloc_pd(), init).unwrap()
    }

    fn fill(srq: &Srq, n: u64) {
        for wr_id in 0..n {
            srq.post(&RecvWr { wr_id, sges: &[] }).unwrap();
        }
    }

    #[test]
    fn the_limit_event_comes_once_when_fewer_than_the_limit_are_left() {
        let srq = srq(8);
        let mut held = HeldRecv::default();
        fill(&srq, 4);
        srq.set_limit(3).unwrap();
        assert_eq!(srq.take(&mut held), Taken::One);
        assert_eq!(srq.take(&mut held), Taken::OneBelowLimit);
        assert_eq!(srq.query().2, 0, "one shot");
        assert_eq!(srq.take(&mut held), Taken::One);
        assert_eq!(srq.take(&mut held), Taken::One);
        assert_eq!(srq.take(&mut held), Taken::Nothing);
        assert!(srq.set_limit(9).is_err());
    }

    #[test]
    fn resize_keeps_what_is_posted_and_refuses_to_lose_any() {
        let srq = srq(4);
        fill(&srq, 3);
        assert!(srq.resize(2).is_err());
        srq.resize(100).unwrap();
        fill(&srq, 97);
        assert!(
            srq.post(&RecvWr {
                wr_id: 0,
                sges: &[]
            })
            .is_err()
        );
        let mut held = HeldRecv::default();
        for want in [0, 1, 2, 0] {
            srq.take(&mut held);
            assert_eq!(held.wr_id, want);
        }
    }

    #[test]
    fn several_posts_are_taken_until_the_queue_is_full() {
        let srq = srq(2);
        let taken = srq.posting(|held| {
            let wrs = (0..3).map(|wr_id| RecvWr { wr_id, sges: &[] });
            wrs.map_while(|wr| held.post(&wr).ok()).count()
        });
        assert_eq!((taken, srq.posted()), (2, 2));
    }

    #[test]
    fn an_xrc_queue_is_found_in_its_domain_until_it_is_gone() {
        let xrcd = Xrcd::new();
        let init = SrqInit {
            max_wr: 1,
            max_sge: 1,
            xrc: Some((xrcd.clone(), Cq::new(0, 1).unwrap())),
        };
        let srq = Srq::new(5, Regions::new([0; 32]).alloc_pd(), init).unwrap();
        assert!(xrcd.srq(5).is_some());
        assert!(xrcd.srq(6).is_none());
        drop(srq);
        assert!(xrcd.srq(5).is_none());
    }
}
