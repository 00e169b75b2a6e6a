//! Signals of the program: they are not delivered to threads of Ferroce, and interrupt system
//! calls as its handlers want.

use core::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

/// The signals of faults. System calls that wait do not cause them.
const FAULTS: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// The effect of the program's signal handlers on a system call that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handlers {
    /// The call goes on (SA_RESTART), or there are no handlers.
    Restart,
    /// The call fails with EINTR.
    Interrupt,
    /// The call goes on after some handlers, and fails after others.
    Differ,
}

/// Returns the effect of the program's signal handlers, for system calls such as `poll`, which
/// the kernel never restarts.
pub fn handlers() -> Handlers {
    let (mut restarts, mut interrupts) = (false, false);
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)) {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the call writes the action of the signal, and changes nothing. All zeros are
        // a valid value, in case the call fails for a signal that libc reserves.
        let action = unsafe {
            libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr());
            action.assume_init()
        };
        if [libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction) {
            continue;
        }
        match action.sa_flags & libc::SA_RESTART {
            0 => interrupts = true,
            _ => restarts = true,
        }
    }
    match (restarts, interrupts) {
        (true, true) => Handlers::Differ,
        (false, true) => Handlers::Interrupt,
        _ => Handlers::Restart,
    }
}

/// Restores the signal mask when dropped.
pub(crate) struct Blocked {
    before: libc::sigset_t,
}

/// Blocks all signals in this thread except those of faults, which must reach the fault
/// handler. A thread that is started now inherits the mask.
pub(crate) fn block_all() -> Blocked {
    // SAFETY: `sigset_t` is plain data; the calls fill it and set this thread's mask.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        let mut before: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        for fault in FAULTS {
            libc::sigdelset(&raw mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        Blocked { before }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the call restores the mask that this thread had before.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                core::ptr::null_mut(),
            );
        }
    }
}

/// Blocks the signals that end a command (Ctrl-C, SIGTERM, SIGHUP), and returns a descriptor that
/// is readable when one of them has arrived.
///
/// # Errors
/// If the process has too many open files.
pub fn catch_end() -> std::io::Result<OwnedFd> {
    // SAFETY: `sigset_t` is plain data; the calls fill it, set this thread's mask, and create a
    // new descriptor, which only the returned value owns.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut());
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) {
            -1 => Err(std::io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}
