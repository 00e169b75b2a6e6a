//! A scenario: everything about a run that is decided before it starts.
//!
//! A seed draws a family, which fixes the theme, and switches on some features
//! more: so each seed has few of them, and over many seeds they meet in all
//! combinations.

mod draw;
mod family;

use ferroce_transport::{QpType, Time};
use ferroce_wire::Mtu;

pub use family::Family;

use crate::model::Setup;
use crate::network::Link;

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a run may contain.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Features {
            $($(#[$doc])* pub(crate) $name: bool,)*
        }

        impl Features {
            /// The names of those that are switched on.
            fn names(&self) -> Vec<&'static str> {
                let all = [$((stringify!($name), self.$name),)*];
                all.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
            }
        }
    };
}

features! {
    loss,
    duplicates,
    /// Some duplicates are very late.
    stragglers,
    reordering,
    corruption,
    congestion_marks,
    /// Packets that come from somebody else, or of another partition.
    strays,
    /// Receive buffers of a few packets.
    tiny_buffers,
    pauses,
    /// PSNs that start near their end.
    wrap,
    /// Receives are posted late: RNR NAKs.
    late_receives,
    /// Few RNR retries.
    rnr_limits,
    /// Few retries, which losses may use up.
    few_retries,
    /// Requests that the peer must refuse.
    bad_requests,
    /// Requests that fail on the side that posts them.
    bad_locals,
    /// Queue pairs moved to ERR, reset or destroyed.
    teardown,
    /// Broken connections are made anew.
    reconnect,
    deregister,
    drain,
    shared_receives,
    windows,
    small_cqs,
    notifications,
    /// READs and WRITEs of the same memory, ordered by fences.
    fences,
    /// Messages of up to 200 kB.
    big,
    /// In-flight windows of a few packets.
    small_windows,
    /// The network goes down for longer than retries last.
    dark,
    multicast,
}

/// A connection.
#[derive(Clone, Debug)]
pub(crate) struct PairPlan {
    /// RC, UC, or XRC initiator.
    pub(crate) kind: QpType,
    pub(crate) ends: [EndPlan; 2],
}

/// One end of a connection, or a datagram queue pair.
#[derive(Clone, Debug)]
pub(crate) struct EndPlan {
    pub(crate) host: usize,
    pub(crate) setup: Setup,
    /// Work requests its program posts.
    pub(crate) todo: u32,
    pub(crate) recv_size: u64,
    pub(crate) queue_depth: u32,
    pub(crate) max_sge: u32,
    pub(crate) shared_receives: bool,
    pub(crate) signals_all: bool,
    /// How long after its peer it becomes ready to send.
    pub(crate) late_ns: u64,
}

/// A datagram queue pair.
#[derive(Clone, Debug)]
pub(crate) struct DatagramPlan {
    pub(crate) general_services: bool,
    pub(crate) end: EndPlan,
    /// Which multicast groups it joins.
    pub(crate) groups: Vec<u8>,
}

/// Something that disturbs the run.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Disruption {
    /// A host stands still.
    Pause { host: usize, ns: u64 },
    /// The program moves a queue pair to ERR.
    Kill { qp: usize },
    /// The program resets a queue pair.
    Reset { qp: usize },
    /// The program destroys a queue pair.
    Destroy { qp: usize },
    /// The program deregisters a zone for remote or for local use.
    Deregister { host: usize, remote: bool },
    /// The send queue is drained for a while.
    Drain { qp: usize, ns: u64 },
    /// Nothing passes between two hosts.
    Dark { a: usize, b: usize, ns: u64 },
}

/// A scenario.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) family: Family,
    pub(crate) features: Features,
    pub(crate) hosts: usize,
    pub(crate) ipv6: bool,
    pub(crate) links: Vec<Vec<Link>>,
    pub(crate) most_losses: u8,
    /// Packets that a receive buffer holds, and the time each takes.
    pub(crate) rx_capacity: usize,
    pub(crate) service_ns: u64,
    pub(crate) port_mtu: Mtu,
    pub(crate) initial_window: u32,
    pub(crate) max_window: u32,
    /// The longest message.
    pub(crate) longest: u64,
    pub(crate) pairs: Vec<PairPlan>,
    pub(crate) datagrams: Vec<DatagramPlan>,
    pub(crate) disruptions: Vec<(Time, Disruption)>,
    /// The mean time between two steps of a program.
    pub(crate) step_ns: u64,
    /// The chance that a work request is a bad one.
    pub(crate) bad: f64,
    /// The chance that a program step posts receives.
    pub(crate) receive_pace: f64,
    /// When faults end.
    pub(crate) heal: Time,
}

impl Scenario {
    /// The scenario of a seed.
    pub(crate) fn draw(seed: u64) -> Scenario {
        draw::draw(seed)
    }

    /// How long the latest duplicate can take.
    pub(crate) fn longest_straggler_ns(&self) -> u64 {
        let links = self.links.iter().flatten();
        self.longest_trip_ns() + links.map(|link| link.straggle_ns).max().unwrap_or(0)
    }

    /// How long a packet can take, with waiting in receive buffers.
    pub(crate) fn longest_trip_ns(&self) -> u64 {
        let links = self.links.iter().flatten();
        let link = links.map(Link::longest_ns).max().unwrap_or(0);
        link + self.rx_capacity as u64 * self.service_ns
    }

    /// How long the most patient queue pair waits for an answer.
    pub(crate) fn longest_timeout_ns(&self) -> u64 {
        let ends = self.pairs.iter().flat_map(|pair| &pair.ends);
        ends.map(|end| 4096 << end.setup.timeout).max().unwrap_or(0)
    }

    /// Whether every packet arrives once and in time, while the network is up.
    pub(crate) fn is_lossless(&self) -> bool {
        let f = &self.features;
        let safe = !(f.loss || f.corruption || f.tiny_buffers || f.pauses || f.big);
        safe && !self.disorders()
    }

    /// Whether UC messages may arrive twice or out of order.
    pub(crate) fn disorders(&self) -> bool {
        self.features.duplicates || self.features.reordering
    }

    /// One line about it.
    pub(crate) fn summary(&self) -> String {
        let kinds: Vec<String> = self.pairs.iter().map(|p| format!("{:?}", p.kind)).collect();
        format!(
            "{:?}: {} hosts, {}, connections [{}], {} datagram queue pairs, faults until {} ({})",
            self.family,
            self.hosts,
            if self.ipv6 { "IPv6" } else { "IPv4" },
            kinds.join(" "),
            self.datagrams.len(),
            self.heal,
            self.features.names().join(", "),
        )
    }
}
