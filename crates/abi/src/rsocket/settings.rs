//! Defaults, and the files with which an administrator changes them.

use std::path::Path;
use std::sync::OnceLock;

use super::flow::LOW_WATER;
use super::wire::iomap_capacity;

/// What a new socket begins with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Settings {
    /// Bytes of the receive and send buffers.
    pub(crate) receive_buffer: u32,
    pub(crate) send_buffer: u32,
    /// Work requests.
    pub(crate) send_queue: u16,
    pub(crate) receive_queue: u16,
    pub(crate) inline: u16,
    /// Mappings that the peer may announce.
    pub(crate) iomaps: u32,
    /// Microseconds to look for data before sleeping.
    pub(crate) polling_time: u32,
    /// Milliseconds after which a sleeper looks whether it overlooked something.
    pub(crate) wake_up_interval: u32,
}

const FOLDER: &str = "/etc/rdma/rsocket";

/// The bounds of queues: some room for control messages, and numbers of 16 bits.
const MIN_QUEUE: u32 = 16;
const MAX_QUEUE: u32 = 0xfffe;

/// The most a buffer may hold: halves of it have lengths of messages.
const MAX_BUFFER: u32 = 1 << 28;

impl Settings {
    /// As the files say, or else the defaults of the distribution's rsockets.
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

/// What a wanted size of a buffer becomes: two halves of some use.
pub(crate) fn buffer_size(wanted: u32) -> u32 {
    wanted.clamp(2 * LOW_WATER, MAX_BUFFER) & !7
}

/// What a wanted size of a queue becomes.
pub(crate) fn queue_size(wanted: u32) -> u16 {
    wanted.clamp(MIN_QUEUE, MAX_QUEUE) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_change_defaults_and_nonsense_does_not() {
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
