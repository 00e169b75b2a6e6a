//! Signal masks: signals of the program are not delivered to threads of the device.

/// Restores the signal mask when dropped.
#[allow(missing_debug_implementations)]
pub struct Blocked {
    before: libc::sigset_t,
}

/// Blocks all signals in this thread except those of faults, which must reach the fault
/// handler. A thread that is started now inherits the mask.
pub fn block_all() -> Blocked {
    // SAFETY: `sigset_t` is plain data; the calls fill it and set this thread's mask.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        let mut before: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        for fault in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGILL,
            libc::SIGFPE,
            libc::SIGTRAP,
            libc::SIGSYS,
        ] {
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
