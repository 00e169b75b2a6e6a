//! `ferroce resource`: shows the RDMA objects of programs, like `rdma resource`.

use anyhow::Result;
use clap::Args;

use crate::output::Format;
use crate::rdma;

/// Show queue pairs, connections and other objects of programs
#[derive(Debug, Args)]
#[command(
    override_usage = "ferroce resource [show [LINK]]
       ferroce resource show qp|cm_id [link LINK/PORT] [FILTER VALUE]...
       ferroce resource show cq|pd|mr|ctx|srq [dev LINK] [FILTER VALUE]...",
    long_about = "\
Shows the RDMA objects of programs: the number of each kind on each link, or all objects of one \
kind with the process that owns them. The words are those of `rdma resource` and may be \
shortened. Only root and the user that runs ferroced see the keys of memory regions.",
    after_long_help = "\
EXAMPLES
    ferroce resource
        0: rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 1 ctx 1 srq 0
    ferroce resource show qp
        all queue pairs with their states and PSNs
    ferroce resource show qp link rxe0/1 state RTS
    ferroce resource show cm_id dst-port 7174
        connections to port 7174
    ferroce -j resource show mr"
)]
pub(crate) struct ResourceArgs {
    /// The words that follow `rdma resource`
    #[arg(hide = true)]
    words: Vec<String>,
}

impl ResourceArgs {
    pub(crate) fn run(self, format: Format) -> Result<()> {
        rdma::resource(&self.words, format)
    }
}
