//! Shared receive queues and XRC domains.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::cq::Cq;
use crate::error::VerbsError;
use crate::recv_queue::{HeldRecv, RecvRing};
use crate::region::Pd;
use crate::room;
use crate::verbs::RecvWr;

/// Largest capacity of a shared receive queue.
pub const MAX_SRQ_WR: u32 = 1 << 20;
/// Largest number of scatter elements of a receive in a shared receive queue.
pub const MAX_SRQ_SGE: u32 = 27;

/// An XRC domain: the shared receive queues that XRC requests can name by number.
#[derive(Debug, Default)]
pub struct Xrcd {
    srqs: Mutex<BTreeMap<u32, Weak<Srq>>>,
}

impl Xrcd {
    /// Creates a domain without queues.
    pub fn new() -> Arc<Xrcd> {
        Arc::new(Xrcd::default())
    }

    /// Returns the queue with this number, if it still exists.
    pub fn srq(&self, number: u32) -> Option<Arc<Srq>> {
        self.lock().get(&number)?.upgrade()
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Srq>>> {
        self.srqs
            .lock()
            .expect("no code panics while it holds an XRC domain")
    }
}

/// `ibv_srq_init_attr`.
#[derive(Clone, Debug)]
pub struct SrqInit {
    /// Number of receives that the queue holds.
    pub max_wr: u32,
    /// Largest number of scatter elements of a receive.
    pub max_sge: u32,
    /// Domain and completion queue of an XRC queue.
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

/// The outcome of taking a receive.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// No receive is posted.
    Nothing,
    /// A receive was taken.
    One,
    /// A receive was taken and fewer than the limit are left: the caller reports the event.
    OneBelowLimit,
}

impl Srq {
    /// Creates a shared receive queue. `number` (24 bits) names the queue in events, and in
    /// packets if it is an XRC queue.
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

    /// Returns the number of the queue.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the protection domain.
    #[inline]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the completion queue of an XRC queue.
    #[inline]
    pub fn xrc_cq(&self) -> Option<&Arc<Cq>> {
        self.xrc.as_ref().map(|(_, cq)| cq)
    }

    /// Posts a receive.
    #[inline]
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        self.lock().ring.post(wr)
    }

    /// Locks the queue once for several posts.
    pub fn posting<T>(&self, work: impl FnOnce(&mut SrqPosting<'_>) -> T) -> T {
        work(&mut SrqPosting(&mut self.lock().ring))
    }

    /// Arms one event for the moment when fewer than `limit` receives are left; 0 disarms.
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

    /// Changes the capacity. Fails if the posted receives do not fit.
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

    /// Returns `(max_wr, max_sge, limit)`, as `ibv_query_srq` reports them.
    pub fn query(&self) -> (u32, u32, u32) {
        let inner = self.lock();
        (inner.max_wr, inner.max_sge, inner.limit)
    }

    /// Returns the number of posted receives.
    pub fn posted(&self) -> usize {
        self.lock().ring.len()
    }

    /// Moves the oldest receive into `held`.
    #[inline]
    pub fn take(&self, held: &mut HeldRecv) -> Taken {
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

/// A shared receive queue, locked for several posts.
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
    fn limit_event_is_reported_once_below_the_limit() {
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
    fn resize_keeps_posted_receives_or_fails() {
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
    fn posts_succeed_until_the_queue_is_full() {
        let srq = srq(2);
        let taken = srq.posting(|held| {
            let wrs = (0..3).map(|wr_id| RecvWr { wr_id, sges: &[] });
            wrs.map_while(|wr| held.post(&wr).ok()).count()
        });
        assert_eq!((taken, srq.posted()), (2, 2));
    }

    #[test]
    fn xrc_queue_is_found_in_its_domain_until_it_is_dropped() {
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
