//! The send queue of a RoCE queue pair.

use ferroce_objects::send_queue;
pub(crate) use ferroce_objects::send_queue::{Finished, Phase};
pub(crate) use ferroce_objects::sge::spans;
use ferroce_wire::Psn;

/// RoCE's state of a send work request.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The PSN of the first packet.
    pub(crate) first_psn: Psn,
    /// Number of PSNs, which for a READ is the number of response packets.
    pub(crate) packets: u32,
}

/// A send work request with its PSNs.
pub(crate) type Wqe = send_queue::Wqe<Progress>;

/// The ring of a queue pair's send work requests.
pub(crate) type SendQueue = send_queue::SendQueue<Progress>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_requests_keep_their_size() {
        // Every slot of every send queue has one.
        assert_eq!(size_of::<Wqe>(), 80);
    }
}
