//! Events of the streams under queue pairs, for the code that owns the sockets.

/// An event of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamEvent {
    /// The queue pair is ready to send: `RDMA_CM_EVENT_ESTABLISHED`.
    Established {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// No more bytes follow: the caller sends a FIN and keeps receiving.
    Shutdown {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// The queue pair no longer uses the stream: the caller closes the socket, and reports
    /// `RDMA_CM_EVENT_DISCONNECTED`. It is the last event of a stream.
    Closed {
        /// Number of the queue pair.
        qpn: u32,
        /// True if the caller resets the connection instead of closing it in order.
        abort: bool,
        /// The reason.
        cause: CloseCause,
    },
}

/// The reason why a stream ended.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum CloseCause {
    /// The program disconnected, or moved the queue pair to ERR or RESET, or destroyed it.
    Program,
    /// The peer closed its stream in order.
    Peer,
    /// The peer sent a TERMINATE.
    Terminated,
    /// This end found an error.
    Failed,
    /// The connection broke.
    Lost,
    /// The peer did not close its stream, or did not send an RTR frame, in time.
    TimedOut,
}
