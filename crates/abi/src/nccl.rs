//! A note that `ferroce run` has set a variable for NCCL.
//!
//! NCCL 2.28 crashes if its GIN probe finds a device that is not mlx5 (NVIDIA/nccl pull
//! request 1881, released in 2.29). With `NCCL_GIN_TYPE=2` it does not probe. `ferroce run`
//! sets that for every program, because it cannot know which of them will load NCCL. The
//! note appears only in programs that have loaded it.

use std::sync::Once;

use ferroce_control::path::{NCCL_SET_VARIABLE, QUIET_VARIABLE};

/// Part of the file name of NCCL's library.
const LIBRARY: &str = "/libnccl.so";

/// Writes the note once, if `ferroce run` has set the variable and NCCL is loaded.
pub(crate) fn tell() {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let is_set = |variable| std::env::var_os(variable).is_some();
        if is_set(NCCL_SET_VARIABLE) && !is_set(QUIET_VARIABLE) && is_loaded() {
            let line = "note: `ferroce run` has set NCCL_GIN_TYPE=2, because NCCL 2.28 crashes \
                        without it on devices other than mlx5; set it yourself to choose another \
                        value\n";
            let _closed = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
        }
    });
}

fn is_loaded() -> bool {
    std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains(LIBRARY))
}
