//! Families of scenarios. A family is the theme of a run.

use super::{Features, local};
use crate::rng::Rng;

/// The theme of a run.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs)] // the names are self-explanatory
pub enum Family {
    Clean,
    Lossy,
    Disorder,
    TinyBuffers,
    PsnWrap,
    RnrStorm,
    RnrLimit,
    BadRequests,
    BadLocals,
    Teardown,
    Reconnect,
    Deregister,
    Drain,
    ManyQps,
    SharedReceives,
    Xrc,
    Datagrams,
    Multicast,
    Unreliable,
    Windows,
    CqOverflow,
    Fences,
    Big,
    Outage,
    FewRetries,
    SameMachine,
    BusyHosts,
    /// Hosts of one machine that share memory.
    LocalWire,
}

impl Family {
    /// Returns all families.
    pub fn all() -> impl Iterator<Item = Family> {
        Family::DRAWN.into_iter().chain([Family::LocalWire])
    }

    /// The families without shared memory. Their order determines the scenario of each seed.
    pub(super) const DRAWN: [Family; 27] = [
        Family::Clean,
        Family::Lossy,
        Family::Disorder,
        Family::TinyBuffers,
        Family::PsnWrap,
        Family::RnrStorm,
        Family::RnrLimit,
        Family::BadRequests,
        Family::BadLocals,
        Family::Teardown,
        Family::Reconnect,
        Family::Deregister,
        Family::Drain,
        Family::ManyQps,
        Family::SharedReceives,
        Family::Xrc,
        Family::Datagrams,
        Family::Multicast,
        Family::Unreliable,
        Family::Windows,
        Family::CqOverflow,
        Family::Fences,
        Family::Big,
        Family::Outage,
        Family::FewRetries,
        Family::SameMachine,
        Family::BusyHosts,
    ];

    /// Draws the features of the family, and some more at random.
    pub(super) fn features(self, rng: &mut Rng) -> Features {
        let mut f = Features::default();
        if self == Family::Clean {
            f.wrap = rng.chance(0.3);
            f.notifications = rng.chance(0.3);
            f.shared_receives = rng.chance(0.3);
            f.big = rng.chance(0.2);
            return f;
        }
        if self == Family::BusyHosts {
            f.busy = true;
            f.wrap = rng.chance(0.3);
            f.notifications = rng.chance(0.3);
            return f;
        }
        if self == Family::LocalWire {
            return local::features(rng);
        }
        for (feature, probability) in [
            (&mut f.loss, 0.5),
            (&mut f.duplicates, 0.3),
            (&mut f.stragglers, 0.3),
            (&mut f.reordering, 0.25),
            (&mut f.corruption, 0.2),
            (&mut f.congestion_marks, 0.1),
            (&mut f.strays, 0.1),
            (&mut f.tiny_buffers, 0.1),
            (&mut f.pauses, 0.1),
            (&mut f.wrap, 0.3),
            (&mut f.late_receives, 0.2),
            (&mut f.shared_receives, 0.15),
            (&mut f.notifications, 0.2),
            (&mut f.fences, 0.2),
            (&mut f.small_windows, 0.2),
            (&mut f.drain, 0.05),
        ] {
            *feature = rng.chance(probability);
        }
        match self {
            Family::Clean
            | Family::ManyQps
            | Family::Xrc
            | Family::Datagrams
            | Family::BusyHosts
            | Family::LocalWire => {}
            Family::Unreliable => f.small_windows = false,
            Family::Lossy => f.loss = true,
            Family::Disorder => {
                f.duplicates = true;
                f.reordering = true;
            }
            Family::TinyBuffers => f.tiny_buffers = true,
            Family::PsnWrap => f.wrap = true,
            Family::RnrStorm => f.late_receives = true,
            Family::RnrLimit => {
                f.late_receives = true;
                f.rnr_limits = true;
            }
            Family::BadRequests => f.bad_requests = true,
            Family::BadLocals => f.bad_locals = true,
            Family::Teardown => f.teardown = true,
            Family::Reconnect => {
                f.teardown = true;
                f.reconnect = true;
                f.bad_requests = rng.chance(0.3);
            }
            Family::Deregister => f.deregister = true,
            Family::Drain => f.drain = true,
            Family::SharedReceives => f.shared_receives = true,
            Family::Multicast => f.multicast = true,
            Family::Windows => {
                f.windows = true;
                f.bad_requests = rng.chance(0.3);
            }
            Family::CqOverflow => f.small_cqs = true,
            Family::Fences => f.fences = true,
            Family::Big => f.big = true,
            Family::Outage => f.outage = true,
            Family::FewRetries => {
                f.loss = true;
                f.few_retries = true;
            }
            Family::SameMachine => f.late_receives = rng.chance(0.5),
        }
        f
    }
}
