//! The handler for SIGSEGV and SIGBUS, which turns faults of [`access`] into errors.

use core::ptr;
use std::sync::OnceLock;

use libc::{c_int, c_void, sigaction, siginfo_t, ucontext_t};

use super::access;

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Dispositions before this handler was installed, in the order of [`SIGNALS`].
static PREVIOUS: OnceLock<[sigaction; 2]> = OnceLock::new();

/// Returns true if faults reach this handler. The first call installs the handler; later
/// calls only check.
pub(super) fn is_ours() -> bool {
    if PREVIOUS.get().is_none() {
        PREVIOUS.get_or_init(|| SIGNALS.map(install));
    }
    SIGNALS
        .iter()
        .all(|&signal| current(signal).sa_sigaction == on_fault as *const () as usize)
}

fn current(signal: c_int) -> sigaction {
    // SAFETY: an all-zero sigaction is valid; the call only reads the disposition.
    unsafe {
        let mut now: sigaction = core::mem::zeroed();
        libc::sigaction(signal, ptr::null(), &raw mut now);
        now
    }
}

fn install(signal: c_int) -> sigaction {
    let before = current(signal);
    // SAFETY: an all-zero sigaction is valid, and `on_fault` has the signature
    // that SA_SIGINFO asks for. It runs on the alternate stack if there is one,
    // and may be entered again, so that the program's handler behind it works
    // as before.
    unsafe {
        let mut ours: sigaction = core::mem::zeroed();
        ours.sa_sigaction = on_fault as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        ours.sa_mask = before.sa_mask;
        libc::sigaction(signal, &raw const ours, ptr::null_mut());
    }
    before
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `ucontext_t` that only this handler uses meanwhile.
    let registers = unsafe { &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs };
    let instruction = &mut registers[libc::REG_RIP as usize];
    if access::contains(*instruction as usize) {
        *instruction = access::faulted as *const () as usize as i64;
        return;
    }
    pass_on(signal, info, context);
}

/// Does with a fault of other code what would happen without this handler.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let which = usize::from(signal == SIGNALS[1]);
    let before = PREVIOUS.get().map(|previous| previous[which]);
    match before {
        Some(before) if !matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) => {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the program installed this address as a handler of
                // this signature.
                let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    unsafe { core::mem::transmute(before.sa_sigaction) };
                handler(signal, info, context);
            } else {
                // SAFETY: the program installed this address as a handler without
                // SA_SIGINFO.
                let handler: extern "C" fn(c_int) =
                    unsafe { core::mem::transmute(before.sa_sigaction) };
                handler(signal);
            }
        }
        // With the default disposition the instruction faults again and ends the process.
        // SAFETY: an all-zero sigaction is the default disposition.
        _ => unsafe {
            let default: sigaction = core::mem::zeroed();
            libc::sigaction(signal, &raw const default, ptr::null_mut());
        },
    }
}
