//! Counters, under the names of rxe where rxe has them.
//!
//! One engine writes and any thread reads. So relaxed loads and stores suffice, and cost no
//! more than plain integers.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($variant:ident = $name:literal: $doc:literal,)*) => {
        /// A counter.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter {
            $(#[doc = $doc] $variant,)*
        }

        impl Counter {
            /// All counters.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];

            /// Returns the name in sysfs.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }

            /// Returns the description.
            pub const fn help(self) -> &'static str {
                match self { $(Counter::$variant => $doc,)* }
            }
        }
    };
}

counters! {
    SentPkts = "sent_pkts": "Packets handed to the network.",
    RcvdPkts = "rcvd_pkts": "Packets that passed all checks, ICRC included.",
    DuplicateRequest = "duplicate_request": "Requests with a PSN behind the expected one.",
    OutOfSeqRequest = "out_of_seq_request": "Sequence NAKs sent, one per gap.",
    RcvdRnrErr = "rcvd_rnr_err": "RNR NAKs received.",
    SendRnrErr = "send_rnr_err": "RNR NAKs sent.",
    RcvdSeqErr = "rcvd_seq_err": "Sequence NAKs received.",
    AckDeferred = "ack_deferred": "ACKs that were not sent because a later ACK covered them.",
    RetryExceededErr = "retry_exceeded_err": "Work requests that ran out of retries.",
    RetryRnrExceededErr = "retry_rnr_exceeded_err": "Work requests that ran out of RNR retries.",
    CompleterRetryErr = "completer_retry_err": "Retries started.",
    SendErr = "send_err": "Packets that the network refused to send.",
    LinkDowned = "link_downed": "Times the port went down.",
    RdmaSends = "rdma_sends": "SENDs completed.",
    RdmaRecvs = "rdma_recvs": "Receives completed.",
    SentBytes = "sent_bytes": "Bytes of the packets sent, from the BTH on.",
    RcvdBytes = "rcvd_bytes": "Bytes of the packets received, from the BTH on.",
    BadPkey = "bad_pkey_cntr": "Packets with the P_Key of another partition.",
    BadQkey = "qkey_viol_cntr": "Datagrams with a wrong Q_Key.",
    RxMalformed = "rx_malformed": "Packets too short, of an unknown opcode or version.",
    RxIcrcErr = "rx_icrc_err": "Packets with a wrong ICRC.",
    RxUnknownQp = "rx_unknown_qp": "Packets for a queue pair that does not exist.",
    RxWrongState = "rx_wrong_state": "Packets that the queue pair's type or state does not accept.",
    RxWrongPeer = "rx_wrong_peer": "Packets from an address that is not the peer's.",
    RxNoReceive = "rx_no_receive": "Unreliable messages without a posted receive of sufficient size.",
    RxDropped = "rx_dropped": "Packets that were out of sequence, or responses to no request.",
    RcvdCnp = "rcvd_cnp": "Congestion notifications received.",
    SentCnp = "sent_cnp": "Congestion notifications sent.",
    RxSocketOverflow = "rx_socket_overflow": "Datagrams that the kernel dropped because the socket buffer was full; merged datagrams count as one. ferroced counts them.",
    RxForwarded = "rx_forwarded": "Packets of another slot that arrived in a merged buffer and were forwarded.",
    RxForwardErr = "rx_forward_err": "Packets of another slot that could not be forwarded.",
    RxAdopted = "rx_adopted": "Packets that another slot received and forwarded to this one.",
    RxDiscarded = "rx_discarded": "Datagrams that were empty, truncated, or forwarded to the wrong slot.",
    LocalSentPkts = "local_sent_pkts": "Packets sent through shared memory, to a program on this host; sent_pkts includes them.",
    LocalRcvdPkts = "local_rcvd_pkts": "Packets that arrived through shared memory.",
    LocalSentBytes = "local_sent_bytes": "Bytes of the packets sent through shared memory.",
    LocalRcvdBytes = "local_rcvd_bytes": "Bytes of the packets that arrived through shared memory.",
}

/// Number of counters.
pub const COUNTERS: usize = Counter::ALL.len();

/// A set of counters, in private memory or in memory shared with other processes.
#[derive(Debug)]
pub struct Counters {
    values: Values,
}

#[derive(Debug)]
enum Values {
    Own(Box<[AtomicU64; COUNTERS]>),
    Shared {
        values: &'static [AtomicU64; COUNTERS],
        /// Keeps the memory of `values`; dropped with the counters.
        _keeper: Box<dyn Any + Send + Sync>,
    },
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            values: Values::Own(Box::new([const { AtomicU64::new(0) }; COUNTERS])),
        }
    }
}

impl Counters {
    /// Creates counters in shared memory, in the order of [`Counter::ALL`].
    ///
    /// `keeper` is dropped with the counters. No reference to `values` outlives the counters,
    /// so the keeper may free their memory.
    pub fn shared(
        values: &'static [AtomicU64; COUNTERS],
        keeper: Box<dyn Any + Send + Sync>,
    ) -> Counters {
        Counters {
            values: Values::Shared {
                values,
                _keeper: keeper,
            },
        }
    }

    /// Returns the value of a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.value(counter).load(Ordering::Relaxed)
    }

    /// Adds `n` to a counter. Only one thread may write: the addition is not atomic.
    pub fn add(&self, counter: Counter, n: u64) {
        let value = self.value(counter);
        let sum = value.load(Ordering::Relaxed).wrapping_add(n);
        value.store(sum, Ordering::Relaxed);
    }

    /// Adds 1 to a counter.
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    fn value(&self, counter: Counter) -> &AtomicU64 {
        match &self.values {
            Values::Own(values) => &values[counter as usize],
            Values::Shared { values, .. } => &values[counter as usize],
        }
    }
}
