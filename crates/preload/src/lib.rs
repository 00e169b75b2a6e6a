//! libferroce-preload.so: the library that `ferroce run` preloads.
//!
//! Some programs look for RDMA devices in the file system, without libibverbs. No kernel
//! driver puts them there. This library replaces functions of libc and redirects these paths,
//! and no others, to files that ferroced writes:
//!
//! ```text
//!   /sys/class/infiniband/...          $FERROCE_SYSFS/sys/class/infiniband/...
//!   /sys/class/infiniband_verbs/...    $FERROCE_SYSFS/sys/class/infiniband_verbs/...
//!   /sys/devices/virtual/infiniband... $FERROCE_SYSFS/sys/devices/virtual/infiniband...
//!   /dev/infiniband/...                $FERROCE_SYSFS/dev/infiniband/...
//!   /sys/kernel/config/rdma_cm/...     $FERROCE_SYSFS/sys/kernel/config/rdma_cm/...
//! ```
//!
//! A path may leave these directories by `..`, and in sysfs devices are symbolic links: `walk`
//! resolves such paths. If one of the directories is the working directory or open, relative
//! paths are redirected too, and `getcwd` returns the program's path.
//!
//! The library also replaces the functions of libibverbs and librdmacm, whichever copy of
//! these the program has loaded.
//!
//! Counters are files too, and may be stale: before the library redirects a path to one, it
//! asks ferroced to write the counters, and waits up to 500 ms.
//!
//! Without the variable, or while its path does not exist, the library redirects nothing.
//!
//! The library runs inside every program, before `main`, in signal handlers, and between
//! `fork` and `exec`. So it allocates nothing, takes no lock and starts no thread, and other
//! paths cost a comparison of a few bytes. `errno` is that of libc's own call.
//!
//! - `functions`: the functions of libc that take paths
//! - `cwd`: the functions of libc that return the working directory
//! - `verbs`: the functions of libibverbs and librdmacm
//! - `foreign`: a warning about a libibverbs that is not Ferroce's
//! - `binding`: where a loaded library's reference to a function leads
//! - `paths`: the redirection of paths
//! - `refresh`: the request to write counters
//! - `root`: the variable
//! - `next`: libc's own functions

mod binding;
mod cwd;
mod foreign;
mod functions;
mod next;
mod paths;
mod refresh;
mod root;
mod text;
mod verbs;
mod walk;

/// The function that the dynamic linker runs when the library is loaded. It looks up all
/// symbols; calls before it look up their own.
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = {
    extern "C" fn prepare() {
        functions::find_all();
        cwd::find_all();
        foreign::find_all();
        root::read();
        paths::find_where_we_are();
        foreign::read_quiet();
    }
    prepare
};

/// The function that the dynamic linker runs when the program exits.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = {
    extern "C" fn finish() {
        foreign::look_at_exit();
    }
    finish
};
