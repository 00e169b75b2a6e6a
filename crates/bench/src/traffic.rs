//! The parameters of an exchange, and its cost.

use core::ops::AddAssign;

use ferroce_wire::Mtu;

/// Number of messages in an exchange. It is large enough that reading the clock a few
/// times per exchange does not affect the cost of a message.
pub const MESSAGES: usize = 64;

/// The operation under test.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// SEND into posted receives.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ: the data goes from the receiver to the sender.
    Read,
}

/// The parameters of two connected engines.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Number of connections between the two sides.
    pub qps: usize,
    /// Depth of each send queue and receive queue.
    pub queue: u32,
    /// True if the engines compute and check the ICRC.
    pub icrc: bool,
    /// Path MTU: the largest payload of a packet.
    pub mtu: Mtu,
}

/// The messages of an exchange: [`MESSAGES`] messages of one packet each, or one message
/// of [`MESSAGES`] packets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// The operation.
    pub op: Op,
    /// Bytes of a message: at most one packet, or [`MESSAGES`] full packets.
    pub size: usize,
    /// Number of messages that one queue pair sends before the next queue pair's turn.
    pub burst: usize,
}

/// The time spent on each side, in nanoseconds.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Time of the side that posts the operation.
    pub sender: u64,
    /// Time of the other side.
    pub receiver: u64,
}

impl Cost {
    /// Returns the sum of both sides.
    pub fn both(self) -> u64 {
        self.sender + self.receiver
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.sender += other.sender;
        self.receiver += other.receiver;
    }
}
