//! The signal mask of a thread that accesses memory.
//!
//! The kernel ends a process whose thread faults while the signal of the fault is blocked:
//! no handler runs. Programs with a signal thread block all signals in their other threads,
//! which poll. So SIGSEGV and SIGBUS are unblocked while such a thread copies.
//!
//! Only the kernel knows a thread's mask, and a query is a system call. A thread that had the
//! signals unblocked is queried again after [`TRUST_NS`] at the earliest. A thread that had
//! them blocked once is queried every time. One gap remains: a thread that blocks them, polls
//! within that time and accesses unmapped memory in this poll ends its process.

use std::cell::Cell;
use std::marker::PhantomData;

use ferroce_roce::Time;

/// Time for which a thread is trusted to leave the signals unblocked. A query takes 0.1 us,
/// so it costs a busy thread 0.2 percent.
const TRUST_NS: u64 = 50_000;

/// The value of [`OPEN_AT`] in a thread that had the signals blocked.
const SUSPECT: u64 = u64::MAX;

thread_local! {
    /// Time at which this thread was last found with the signals unblocked; 0 if never.
    static OPEN_AT: Cell<u64> = const { Cell::new(0) };
}

/// Blocks the signals of this thread again when dropped.
#[derive(Debug)]
pub(super) struct Unblocked {
    blocked: [bool; 2],
    /// A mask belongs to a thread.
    _not_send: PhantomData<*const ()>,
}

/// Unblocks the signals of this thread, unless they were found unblocked within 50 us.
pub(super) fn unblock(now: Time) -> Option<Unblocked> {
    let open_at = OPEN_AT.get();
    if open_at != SUSPECT && now.nanos_since(Time::from_nanos(open_at)) < TRUST_NS {
        return None;
    }
    let unblocked = unblock_now();
    match unblocked {
        Some(_) => OPEN_AT.set(SUSPECT),
        None if open_at == SUSPECT => {}
        None => OPEN_AT.set(now.as_nanos()),
    }
    unblocked
}

/// Unblocks the signals of this thread. Returns none if they were not blocked.
pub(super) fn unblock_now() -> Option<Unblocked> {
    let before = change(libc::SIG_UNBLOCK, [true; 2]);
    let blocked = SIGNALS.map(|signal| {
        // SAFETY: `before` is a mask that the kernel filled in.
        unsafe { libc::sigismember(&raw const before, signal) == 1 }
    });
    // Made only if needed: its drop is a system call.
    blocked.contains(&true).then(|| Unblocked {
        blocked,
        _not_send: PhantomData,
    })
}

const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Blocks or unblocks the chosen ones of [`SIGNALS`]. Returns the mask before.
fn change(how: libc::c_int, chosen: [bool; 2]) -> libc::sigset_t {
    #[cfg(test)]
    tests::CHANGES.set(tests::CHANGES.get() + 1);
    // SAFETY: `sigset_t` is plain data; the calls fill it and change this thread's mask.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        let mut before: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for (signal, chosen) in SIGNALS.into_iter().zip(chosen) {
            if chosen {
                libc::sigaddset(&raw mut set, signal);
            }
        }
        libc::pthread_sigmask(how, &raw const set, &raw mut before);
        before
    }
}

impl Drop for Unblocked {
    fn drop(&mut self) {
        change(libc::SIG_BLOCK, self.blocked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        /// System calls that changed or queried the mask of this thread.
        pub(super) static CHANGES: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn thread_with_unblocked_signals_is_queried_by_one_system_call() {
        change(libc::SIG_UNBLOCK, [true; 2]);
        let before = CHANGES.get();
        assert!(unblock_now().is_none());
        assert_eq!(CHANGES.get() - before, 1);
    }

    #[test]
    fn thread_with_blocked_signals_has_them_blocked_again() {
        change(libc::SIG_BLOCK, [true, false]);
        let before = CHANGES.get();
        drop(unblock_now().expect("SIGSEGV was blocked"));
        assert_eq!(CHANGES.get() - before, 2);
        drop(unblock_now().expect("SIGSEGV is blocked again"));
        change(libc::SIG_UNBLOCK, [true; 2]);
    }
}
