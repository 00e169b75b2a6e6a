//! `rdma_event_channel`.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use ferroce_rdmacm::EventChannel;

use super::live::LiveObjects;
use super::{Outcome, refused};
use crate::errno::{null, refuse};
use crate::ffi::*;
use crate::log;
use crate::object::Object;
use crate::provoke::provoke;

/// An event channel as the program sees it.
#[repr(C)]
pub(crate) struct ChannelObject {
    c: rdma_event_channel,
    pub(crate) channel: EventChannel,
}

// SAFETY: the structure is `repr(C)`, and the C structure is its first field.
unsafe impl Object for ChannelObject {
    type C = rdma_event_channel;
}

static CHANNELS: LiveObjects<ChannelObject> = LiveObjects::new();

/// Returns the channel of a program's pointer.
pub(crate) fn channel_of(c: *mut rdma_event_channel) -> Outcome<Arc<ChannelObject>> {
    CHANNELS.get(c).ok_or_else(|| {
        refuse(
            libc::EINVAL,
            "the event channel is NULL, or has been destroyed",
        )
    })
}

/// Creates a channel for the program.
pub(crate) fn create() -> Outcome<*mut rdma_event_channel> {
    log::start();
    let channel = EventChannel::new().map_err(refused("rdma_create_event_channel"))?;
    let object = Arc::new(ChannelObject {
        c: rdma_event_channel {
            fd: channel.as_fd().as_raw_fd(),
        },
        channel,
    });
    Ok(CHANNELS.insert(&object))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    provoke!("rdma_create_event_channel" => null);
    create().unwrap_or_else(null)
}

/// Destroys a channel; does nothing for NULL and for one that was destroyed before.
pub(crate) fn destroy(channel: *mut rdma_event_channel) {
    if let Some(object) = CHANNELS.remove(channel) {
        object.channel.close();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    destroy(channel);
}
