//! `ferroce resource`: what programs have, as `rdma resource` shows it.

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
Shows the objects that programs have on links, and whose they are: how many of each kind, or all \
of one kind. The words are those of `rdma resource`, and may be shortened. Keys of memory regions \
are for the user of ferroced and root.",
    after_long_help = "\
EXAMPLES
    ferroce resource
        0: rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 1 ctx 1 srq 0
    ferroce resource show qp
        queue pairs, their states and PSNs
    ferroce resource show qp link rxe0/1 state RTS
    ferroce resource show cm_id dst-port 7174
        connections to a port
    ferroce -j resource show mr"
)]
pub(crate) struct ResourceArgs {
    /// As behind `rdma resource`
    #[arg(hide = true)]
    words: Vec<String>,
}

impl ResourceArgs {
    pub(crate) fn run(self, format: Format) -> Result<()> {
        rdma::resource(&self.words, format)
    }
}
