//! Defaults of new sockets, and the files in `/etc/rdma/rsocket` that change them.

use std::path::Path;
use std::sync::OnceLock;

use crate::flow::LOW_WATER;
use crate::wire::iomap_capacity;

/// The defaults of a new socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Settings {
    /// Size of the receive buffer in bytes.
    pub(crate) receive_buffer: u32,
    /// Size of the send buffer in bytes.
    pub(crate) send_buffer: u32,
    /// Number of work requests in the send queue.
    pub(crate) send_queue: u16,
    /// Number of work requests in the receive queue.
    pub(crate) receive_queue: u16,
    /// Messages of up to this many bytes are sent inline.
    pub(crate) inline: u16,
    /// Number of iomaps that the peer may announce.
    pub(crate) iomaps: u32,
    /// Time in microseconds that a call polls before it sleeps.
    pub(crate) polling_time: u32,
    /// Time in milliseconds after which a sleeping call checks its socket again.
    pub(crate) wake_up_interval: u32,
}

const FOLDER: &str = "/etc/rdma/rsocket";

/// Bounds of queue sizes: room for control messages, and 16-bit sequence numbers.
const MIN_QUEUE: u32 = 16;
const MAX_QUEUE: u32 = 0xfffe;

/// Maximum buffer size: the length of half a buffer fits into the 29 bits of a message.
const MAX_BUFFER: u32 = 1 << 28;

impl Settings {
    /// Returns the settings of this host. The defaults are those of rdma-core's rsockets.
    pub(crate) fn get() -> &'static Settings {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| Settings::read(Path::new(FOLDER)))
    }

    fn read(folder: &Path) -> Settings {
        let value = |name: &str, default: u32| {
            let text = std::fs::read_to_string(folder.join(name)).ok();
            let number = text.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
            number.map_or(default, |number| number.min(u32::MAX.into()) as u32)
        };
        Settings {
            receive_buffer: buffer_size(value("mem_default", 1 << 17)),
            send_buffer: buffer_size(value("wmem_default", 1 << 17)),
            send_queue: queue_size(value("sqsize_default", 384)),
            receive_queue: queue_size(value("rqsize_default", 384)),
            inline: value("inline_default", 64).min(u16::MAX.into()) as u16,
            iomaps: iomap_capacity(value("iomap_size", 0)),
            polling_time: value("polling_time", 10),
            wake_up_interval: value("wake_up_interval", 5000).max(1),
        }
    }
}

/// Returns the nearest valid buffer size. Each half holds at least the low-water mark.
pub(crate) fn buffer_size(wanted: u32) -> u32 {
    wanted.clamp(2 * LOW_WATER, MAX_BUFFER) & !7
}

/// Returns the nearest valid queue size.
pub(crate) fn queue_size(wanted: u32) -> u16 {
    wanted.clamp(MIN_QUEUE, MAX_QUEUE) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_change_defaults_and_invalid_numbers_are_ignored() {
        let folder = std::env::temp_dir().join(format!("rsocket-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let defaults = Settings::read(&folder);
        assert_eq!(defaults.receive_buffer, 131_072);
        assert_eq!(defaults.send_queue, 384);
        for (name, text) in [
            ("mem_default", "1000000\n"),
            ("wmem_default", "1"),
            ("sqsize_default", "70000"),
            ("rqsize_default", "many"),
            ("iomap_size", " 300 "),
        ] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let read = Settings::read(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let expected = Settings {
            receive_buffer: 1_000_000,
            send_buffer: 4096,
            send_queue: 0xfffe,
            iomaps: 256,
            ..defaults
        };
        assert_eq!(read, expected);
    }
}
