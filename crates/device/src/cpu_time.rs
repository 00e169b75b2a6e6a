//! CPU time of the thread that polls.
//!
//! A thread that stopped polling is either busy elsewhere, or does not run: the kernel gave
//! its processor to another thread. Only the first one waits for packets that it does not
//! receive itself. Its CPU time shows the difference.

use core::cell::Cell;

use crate::fork;

/// `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED`: the CPU time of a thread, in the kernel's clock
/// numbers.
const THREAD_CPU_TIME: libc::clockid_t = 6;

thread_local! {
    /// Number of this thread, and the forks before it was asked for.
    static THREAD: Cell<(u32, i32)> = const { Cell::new((0, 0)) };
}

/// Returns the number of the current thread. Only the first call makes a system call.
#[inline]
pub(crate) fn current_thread() -> i32 {
    let forks = fork::count();
    let (before, thread) = THREAD.get();
    if thread != 0 && before == forks {
        return thread;
    }
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    THREAD.set((forks, thread));
    thread
}

/// Returns the CPU time that a thread of this process has used, in nanoseconds; none if the
/// thread has ended.
pub(crate) fn used_by(thread: i32) -> Option<u64> {
    let clock = !thread << 3 | THREAD_CPU_TIME;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call fills `time`, or fails and leaves it alone.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0 && thread != 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_only_while_the_thread_runs() {
        let thread = current_thread();
        assert_eq!(thread, current_thread());
        let before = used_by(thread).expect("this thread lives");
        while used_by(thread).expect("this thread lives") == before {}
        assert_eq!(used_by(0), None);
    }
}
