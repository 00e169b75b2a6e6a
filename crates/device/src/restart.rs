//! Restart of system calls after signals.

/// Returns true if every handler of the program restarts system calls (`SA_RESTART`). The
/// kernel restarts a `read` after such a handler, but never a `poll`.
pub(crate) fn all_restart() -> bool {
    let faults = [libc::SIGSEGV, libc::SIGBUS];
    (1..=libc::SIGRTMAX())
        .filter(|signal| !faults.contains(signal))
        .all(|signal| {
            // SAFETY: `sigaction` is plain data, and zero is a valid value; the call only
            // fills it. A number that is no signal is an error, and leaves it as it is.
            let action = unsafe {
                let mut action: libc::sigaction = core::mem::zeroed();
                libc::sigaction(signal, core::ptr::null(), &raw mut action);
                action
            };
            let is_caught = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
            !is_caught || action.sa_flags & libc::SA_RESTART != 0
        })
}
