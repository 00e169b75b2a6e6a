//! libferroce-preload.so: what `ferroce run` has the dynamic linker load first.
//!
//! Some programs look for RDMA devices in the file system, past libibverbs. There is
//! no kernel driver that would put them there, so this library stands between program
//! and libc, and leads these paths, and no others, to files that ferroced keeps:
//!
//! ```text
//!   /sys/class/infiniband/...          $FERROCE_SYSFS/sys/class/infiniband/...
//!   /sys/class/infiniband_verbs/...    $FERROCE_SYSFS/sys/class/infiniband_verbs/...
//!   /sys/devices/virtual/infiniband... $FERROCE_SYSFS/sys/devices/virtual/infiniband...
//!   /dev/infiniband/...                $FERROCE_SYSFS/dev/infiniband/...
//!   /sys/kernel/config/rdma_cm/...     $FERROCE_SYSFS/sys/kernel/config/rdma_cm/...
//! ```
//!
//! A path may leave these directories by `..`, as it can on the kernel, where devices are
//! symbolic links: `walk` follows it. A program may have one of them as its working
//! directory or open: then relative paths are looked at, too, and `getcwd` is answered.
//!
//! Counters are files like all others, and would be old: before it leads anybody to one,
//! it asks ferroced to write them anew, and waits a moment.
//!
//! Without the variable, or while nothing is at that path, it does nothing at all.
//!
//! It runs inside every program, before `main`, in signal handlers, between `fork` and
//! `exec`: so it allocates nothing, takes no lock, starts nothing, and a path that
//! is not its business costs it a comparison of a few bytes. `errno` is the
//! program's, as after the call that libc itself would have made.
//!
//! `functions` are the functions of libc that take paths, `cwd` those that return the
//! working directory, `foreign` warns of a libibverbs that is not ours, `paths` says which paths go where, `refresh` has counters written, `root` knows the variable, `next` finds libc's own functions.

mod cwd;
mod foreign;
mod functions;
mod next;
mod paths;
mod refresh;
mod root;
mod text;
mod walk;

/// What the dynamic linker runs when the library is loaded: from then on nothing
/// has to be looked up any more. Calls that come earlier look for themselves.
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = {
    extern "C" fn prepare() {
        functions::find_all();
        cwd::find_all();
        root::read();
        paths::find_where_we_are();
        foreign::warn();
    }
    prepare
};

/// Function that the dynamic linker runs when the program ends: the program may have loaded more libraries.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = {
    extern "C" fn finish() {
        foreign::warn();
    }
    finish
};
