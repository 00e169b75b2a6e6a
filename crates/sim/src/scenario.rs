//! A scenario: all parameters of a run that are drawn before it starts.
//!
//! A seed draws a family, which fixes the theme, and enables some more features.
//! So each seed has few features, and many seeds together cover all combinations.

mod busy;
mod draw;
mod family;
mod local;

use ferroce_roce::{QpType, Time};
use ferroce_shard::STANDBY_NS;
use ferroce_wire::Mtu;

pub use family::Family;
pub(crate) use local::LocalPlan;

use crate::model::Setup;
use crate::network::Link;
use crate::program::Choice;

/// Longest delay of a turn behind its deadline.
pub(crate) const LATEST_TURN_NS: u64 = 20_000;

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The features of a run.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Features {
            $($(#[$doc])* pub(crate) $name: bool,)*
        }

        impl Features {
            /// Returns the names of the enabled features.
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
    /// Forged packets with another source address or partition key.
    strays,
    /// Receive buffers that hold a few packets only.
    tiny_buffers,
    pauses,
    /// Initial PSNs just below the wrap at 2^24.
    wrap,
    /// Receives are posted late, which causes RNR NAKs.
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
    /// Failed connections are established again.
    reconnect,
    deregister,
    drain,
    shared_receives,
    windows,
    small_cqs,
    notifications,
    /// READs and WRITEs of the same memory, ordered by fences.
    fences,
    /// Messages of 40 to 200 kB.
    big,
    /// Congestion windows of a few packets.
    small_windows,
    /// Outages of the network that may outlast the retries.
    outage,
    multicast,
    /// Hosts that wait for a processor again and again, and are stopped now and then.
    busy,
}

/// The parameters of a connection.
#[derive(Clone, Debug)]
pub(crate) struct PairPlan {
    /// RC, UC, or XRC initiator.
    pub(crate) kind: QpType,
    pub(crate) ends: [EndPlan; 2],
}

/// The parameters of one end of a connection, or of a datagram queue pair.
#[derive(Clone, Debug)]
pub(crate) struct EndPlan {
    pub(crate) host: usize,
    pub(crate) setup: Setup,
    /// Number of work requests that the program posts.
    pub(crate) todo: u32,
    /// The only operation that the program posts, with long messages; none for a mixture.
    pub(crate) only: Option<Choice>,
    pub(crate) recv_size: u64,
    pub(crate) queue_depth: u32,
    pub(crate) max_sge: u32,
    pub(crate) shared_receives: bool,
    pub(crate) signals_all: bool,
    /// Delay between RTR and RTS.
    pub(crate) late_ns: u64,
}

/// The parameters of a datagram queue pair.
#[derive(Clone, Debug)]
pub(crate) struct DatagramPlan {
    pub(crate) general_services: bool,
    pub(crate) end: EndPlan,
    /// Multicast groups that the queue pair joins.
    pub(crate) groups: Vec<u8>,
}

/// A disruption of the run.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Disruption {
    /// A host is suspended.
    Pause { host: usize, ns: u64 },
    /// The program of a host stops; its progress thread goes on.
    StopProgram { host: usize, ns: u64 },
    /// The program moves a queue pair to ERR.
    Kill { qp: usize },
    /// The program resets a queue pair.
    Reset { qp: usize },
    /// The program destroys a queue pair.
    Destroy { qp: usize },
    /// The program deregisters a zone for remote or for local use.
    Deregister { host: usize, remote: bool },
    /// The program drains the send queue and resumes it later.
    Drain { qp: usize, ns: u64 },
    /// The network between two hosts is down.
    Outage { a: usize, b: usize, ns: u64 },
    /// The process of a host dies after a number of accesses to shared memory.
    Die { host: usize, accesses: u64 },
    /// A host closes one of its channels, or publishes a position there that is impossible.
    EndChannel { host: usize, sabotages: bool },
}

/// All parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) family: Family,
    pub(crate) features: Features,
    pub(crate) hosts: usize,
    /// Machine of each host. Hosts on one machine are programs with one address.
    pub(crate) machines: Vec<usize>,
    /// Bytes of a receive buffer, for the credits of unreliable senders; 0 for no limit.
    pub(crate) receive_buffer: usize,
    /// The local wire; none if hosts share no memory.
    pub(crate) local: Option<LocalPlan>,
    pub(crate) ipv6: bool,
    pub(crate) links: Vec<Vec<Link>>,
    pub(crate) most_losses: u8,
    /// Packets that a receive buffer holds.
    pub(crate) rx_capacity: usize,
    /// Time to process one received packet.
    pub(crate) service_ns: u64,
    /// Longest time that a busy host waits for a processor, except when it is stopped.
    pub(crate) busy_wait_ns: u64,
    pub(crate) port_mtu: Mtu,
    /// Engines check the ICRC. If not, the network corrupts no packet, and only the checks
    /// of the headers reject forged packets.
    pub(crate) check_icrc: bool,
    pub(crate) initial_window: u32,
    pub(crate) max_window: u32,
    /// Length of the longest message.
    pub(crate) longest: u64,
    pub(crate) pairs: Vec<PairPlan>,
    pub(crate) datagrams: Vec<DatagramPlan>,
    pub(crate) disruptions: Vec<(Time, Disruption)>,
    /// Mean time between two steps of a program.
    pub(crate) step_ns: u64,
    /// Probability that a work request is one that must fail.
    pub(crate) bad: f64,
    /// Probability that a program step posts receives.
    pub(crate) receive_pace: f64,
    /// Time at which all faults end.
    pub(crate) heal: Time,
}

impl Scenario {
    /// Draws the scenario of a seed.
    pub(crate) fn draw(seed: u64, family: Option<Family>) -> Scenario {
        draw::draw(seed, family)
    }

    /// Returns the longest delay of a duplicate.
    pub(crate) fn longest_straggler_ns(&self) -> u64 {
        let links = self.links.iter().flatten();
        self.longest_trip_ns() + links.map(|link| link.straggle_ns).max().unwrap_or(0)
    }

    /// Returns the longest delay of a packet, including the wait in a receive buffer.
    pub(crate) fn longest_trip_ns(&self) -> u64 {
        let links = self.links.iter().flatten();
        let link = links.map(Link::longest_ns).max().unwrap_or(0);
        // A poller's ACKs, and its received ACKs, may each wait for the next turn.
        let service = self.rx_capacity as u64 * self.service_ns;
        link + service + self.busy_wait_ns + STANDBY_NS + LATEST_TURN_NS
    }

    /// Returns the longest ACK timeout of all queue pairs.
    pub(crate) fn longest_timeout_ns(&self) -> u64 {
        let ends = self.pairs.iter().flat_map(|pair| &pair.ends);
        ends.map(|end| 4096 << end.setup.timeout).max().unwrap_or(0)
    }

    /// Returns true if every packet arrives once and in time, except during outages.
    pub(crate) fn is_lossless(&self) -> bool {
        let f = &self.features;
        let safe = !(f.loss || f.corruption || f.tiny_buffers || f.pauses || f.big || f.busy);
        safe && !self.disorders()
    }

    /// Returns true if every request is answered in time, so that no requester may retry.
    pub(crate) fn needs_no_retry(&self) -> bool {
        let f = &self.features;
        // Requests that fail by intention, and stale keys of windows, stop their peer.
        let fails = f.bad_requests || f.bad_locals || f.windows || f.small_cqs || f.rnr_limits;
        self.is_lossless() && self.disruptions.is_empty() && !fails
    }

    /// Returns true if UC messages may arrive twice or out of order.
    pub(crate) fn disorders(&self) -> bool {
        self.features.duplicates || self.features.reordering
    }

    /// Returns a one-line summary.
    pub(crate) fn summary(&self) -> String {
        let kinds: Vec<String> = self.pairs.iter().map(|p| format!("{:?}", p.kind)).collect();
        format!(
            "{:?}: {} hosts, {}, ICRC {}, connections [{}], {} datagram queue pairs, faults until {} ({})",
            self.family,
            self.hosts,
            if self.ipv6 { "IPv6" } else { "IPv4" },
            if self.check_icrc { "on" } else { "off" },
            kinds.join(" "),
            self.datagrams.len(),
            self.heal,
            self.features.names().join(", "),
        )
    }
}
