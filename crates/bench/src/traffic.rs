//! What is sent, and what it cost.

use core::ops::AddAssign;

use ferroce_wire::Mtu;

/// Messages that are posted at once: one exchange. Reading the clock a few
/// times an exchange does not show in the cost of a message.
pub const MESSAGES: usize = 64;

/// The operation under test.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// SEND into posted receives.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ: the bytes travel from the receiver to the sender.
    Read,
}

/// Two engines and what connects them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Connections between the two sides.
    pub qps: usize,
    /// Work requests that fit each send and each receive queue.
    pub queue: u32,
    /// Whether packets carry an ICRC that is computed and checked.
    pub icrc: bool,
    /// Payload of a packet, at most.
    pub mtu: Mtu,
}

/// Messages between them, by the exchange of [`MESSAGES`], or of one that is as many
/// packets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// The operation.
    pub op: Op,
    /// Bytes of each message: at most one packet, or [`MESSAGES`] full ones.
    pub size: usize,
    /// Messages that one queue pair sends before the next one's turn.
    pub burst: usize,
}

/// Nanoseconds, by side.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// The side that posts the operation.
    pub sender: u64,
    /// The other one.
    pub receiver: u64,
}

impl Cost {
    /// Both sides together.
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
