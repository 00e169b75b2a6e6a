//! The server: accepts every connection, and destroys it when the client disconnects.

use anyhow::Result;
use ferroce_abi::ffi::*;
use ferroce_bench::end_with_parent;
use ferroce_endpoint::Partner;

use crate::ids::Channel;

pub(crate) fn run() -> Result<()> {
    end_with_parent()?;
    let channel = Channel::new()?;
    let listener = channel.id()?;
    Partner::on_stdin()?.say(&listener.listen()?)?;
    loop {
        let event = channel.next()?;
        match event.what {
            RDMA_CM_EVENT_CONNECT_REQUEST => {
                event.id.queue_pair()?;
                event.id.accept()?;
            }
            RDMA_CM_EVENT_DISCONNECTED => event.id.destroy()?,
            _ => {}
        }
    }
}
