//! The catalogue of checks: a name, the behaviour of hardware, and a remedy for each.

/// A rule that hardware enforces, or that it relies on.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Check {
    /// An address without a GRH.
    Lid,
    /// A GID index of another kind than the peer's GID.
    GidType,
    /// A path MTU above that of the port.
    PathMtu,
    /// Timeouts and retry counts that wait for ever or not at all.
    Timeout,
    /// More READs and atomics than adapters have outstanding.
    Depth,
    /// More inline data than adapters offer.
    Inline,
    /// A send buffer that changed before its completion was polled.
    Buffer,
    /// A memory region that was deregistered while work requests used it.
    Deregistered,
    /// More work requests than a completion queue has room for.
    CompletionQueue,
    /// More work requests than the send queue has room for.
    SendQueue,
    /// A receive of datagrams without room for the GRH.
    GrhRoom,
    /// An atomic at an address that is not a multiple of 8.
    Atomic,
    /// A queue pair in a child of the process that created it.
    Fork,
}

impl Check {
    /// All checks, in the order of the documentation.
    pub const ALL: [Check; 13] = [
        Check::Lid,
        Check::GidType,
        Check::PathMtu,
        Check::Timeout,
        Check::Depth,
        Check::Inline,
        Check::Buffer,
        Check::Deregistered,
        Check::CompletionQueue,
        Check::SendQueue,
        Check::GrhRoom,
        Check::Atomic,
        Check::Fork,
    ];

    /// Returns the name in warnings.
    pub fn name(self) -> &'static str {
        match self {
            Check::Lid => "lid",
            Check::GidType => "gid-type",
            Check::PathMtu => "path-mtu",
            Check::Timeout => "timeout",
            Check::Depth => "depth",
            Check::Inline => "inline",
            Check::Buffer => "buffer-in-use",
            Check::Deregistered => "deregistered",
            Check::CompletionQueue => "cq-size",
            Check::SendQueue => "sq-size",
            Check::GrhRoom => "grh-room",
            Check::Atomic => "unaligned-atomic",
            Check::Fork => "fork",
        }
    }

    /// Returns the behaviour of hardware in one sentence.
    pub fn hardware(self) -> &'static str {
        match self {
            Check::Lid => {
                "RoCE has no LIDs: a ConnectX refuses an address without a GRH with EINVAL"
            }
            Check::GidType => {
                "the GID index selects RoCE v1 or v2 and the source address: with one of another \
                 kind a ConnectX refuses the address, or its packets never reach the peer"
            }
            Check::PathMtu => {
                "a ConnectX sends packets of the path MTU; switches drop those above their MTU, \
                 and the queue pair fails with IBV_WC_RETRY_EXC_ERR"
            }
            Check::Timeout => {
                "the adapter follows the attribute: without a timeout a lost packet hangs the \
                 connection for ever, without retries it breaks the connection"
            }
            Check::Depth => {
                "max_qp_rd_atom of a ConnectX is 16: rdma_connect and rdma_accept fail with EINVAL"
            }
            Check::Inline => {
                "max_inline_data is 828 bytes for RC on a ConnectX with rdma-core, 512 on rxe and \
                 32 on EFA; more makes ibv_create_qp fail with EINVAL"
            }
            Check::Buffer => {
                "the adapter reads the buffer at any time before the completion, and again when \
                 it retransmits: the peer gets old, new or mixed bytes"
            }
            Check::Deregistered => {
                "the adapter finds the key invalid when it executes the work request: \
                 IBV_WC_LOC_PROT_ERR, and the queue pair goes to the error state"
            }
            Check::CompletionQueue => {
                "a completion queue that overflows raises IBV_EVENT_CQ_ERR, and its queue pairs go \
                 to the error state"
            }
            Check::SendQueue => {
                "a slot of the send queue is free only after a completion of this or a later work \
                 request was polled: ibv_post_send fails with ENOMEM"
            }
            Check::GrhRoom => {
                "the first 40 bytes of a datagram's receive are for the GRH: the datagram does not \
                 fit, and is lost or fails the receive with IBV_WC_LOC_LEN_ERR"
            }
            Check::Atomic => {
                "the responder answers \"invalid request\": IBV_WC_REM_INV_REQ_ERR, and the queue \
                 pair goes to the error state"
            }
            Check::Fork => {
                "queues and doorbells of the adapter are not mapped in the child: the call crashes \
                 or disturbs the parent"
            }
        }
    }

    /// Returns the remedy.
    pub fn fix(self) -> &'static str {
        match self {
            Check::Lid => "set is_global to 1, and grh.dgid and grh.sgid_index from the peer's GID",
            Check::GidType => {
                "choose the GID index whose GID has the address family and scope of the peer's, \
                 and type RoCE v2; rdma_cm does it by itself"
            }
            Check::PathMtu => {
                "use the smaller active_mtu of both ends, as ibv_query_port reports it"
            }
            Check::Timeout => "use timeout 14 to 20, retry_cnt 7",
            Check::Depth => {
                "use max_qp_rd_atom and max_qp_init_rd_atom of ibv_query_device, or \
                 RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH"
            }
            Check::Inline => {
                "ask for less, read the granted max_inline_data after ibv_create_qp, and send \
                 longer messages without IBV_SEND_INLINE"
            }
            Check::Buffer => {
                "change the buffer after its completion was polled, or send from a copy; an \
                 unsignaled work request is complete with the next signaled one"
            }
            Check::Deregistered => {
                "poll the completions of all work requests that use the region, or destroy the \
                 queue pair, before ibv_dereg_mr"
            }
            Check::CompletionQueue => {
                "create the completion queue with room for all work requests that may complete \
                 before the next poll"
            }
            Check::SendQueue => {
                "set IBV_SEND_SIGNALED at least once in max_send_wr work requests, and poll those \
                 completions before posting more"
            }
            Check::GrhRoom => "post receives of 40 bytes plus the longest datagram",
            Check::Atomic => "align the remote address to 8 bytes",
            Check::Fork => "open the device and create queue pairs in the process that uses them",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = Check::ALL.map(Check::name).into();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Check::ALL.len());
    }

    #[test]
    fn documentation_has_a_row_for_each_check() {
        let page = include_str!("../../../docs/DEBUGGING.md");
        for check in Check::ALL {
            let row = format!("| `{}` |", check.name());
            assert!(page.contains(&row), "docs/DEBUGGING.md has no row {row}");
        }
    }
}
