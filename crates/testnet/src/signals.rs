//! Signals to a thread that waits.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use crate::deadline;

/// Signals that the handler of SIGUSR1 has received.
static RECEIVED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_signal: libc::c_int) {
    RECEIVED.fetch_add(1, Ordering::Relaxed);
}

/// Runs `wait` in a thread that gets signals while it sleeps, whose handler has these flags of
/// `sigaction`. After ten signals, or if the thread ends before, calls `end`, which must let
/// `wait` return. Returns the result of `wait`.
pub fn wait_with_signals<T: Send + 'static>(
    flags: libc::c_int,
    wait: impl FnOnce() -> T + Send + 'static,
    end: impl FnOnce(),
) -> T {
    // SAFETY: all zeros are a valid action, and the handler only adds to an atomic.
    let result = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGUSR1, &raw const action, core::ptr::null_mut())
    };
    assert_eq!(result, 0, "SIGUSR1 can be caught");
    RECEIVED.store(0, Ordering::Relaxed);
    let (number, numbers) = mpsc::channel();
    let waiting = move || {
        number.send(rustix::thread::gettid()).expect("received");
        wait()
    };
    #[allow(clippy::disallowed_methods, reason = "another thread waits")]
    let thread = std::thread::spawn(waiting);
    let tid = numbers.recv().expect("sent").as_raw_nonzero().get();
    deadline::until("ten signals, or the end of the wait", || {
        let status = format!("/proc/self/task/{tid}/status");
        let sleeps = std::fs::read_to_string(status).is_ok_and(|text| text.contains("State:\tS"));
        if sleeps {
            // SAFETY: the call signals a thread of this process, or finds none.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR1) };
        }
        thread.is_finished() || RECEIVED.load(Ordering::Relaxed) >= 10
    });
    end();
    thread.join().expect("no panic")
}
