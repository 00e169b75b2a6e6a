//! Verbs that fail because a fault of `ferroce run --faults` is in force.
//!
//! A verb that sets up or ends an object asks at each call. The functions that post and poll ask
//! nothing: contexts get others in their place, if faults are in force when they are opened.

use core::ffi::c_int;

use ferroce_device::faults;

use crate::context::context_of;
use crate::errno::{refuse, set_errno};
use crate::ffi::*;
use crate::strict::hooks;
use crate::{cq, post};

/// Returns from a verb with an error if a fault demands it: by `null`, `minus_one` or `errno`.
macro_rules! provoke {
    ($verb:literal => $how:ident) => {
        if let Some(errno) = crate::provoke::failure($verb) {
            return crate::provoke::how::$how(errno);
        }
    };
}
pub(crate) use provoke;

/// Counts a call of a verb. Returns the error if the call must fail.
#[inline]
pub(crate) fn failure(verb: &str) -> Option<c_int> {
    let errno = faults::verb(verb)?;
    Some(refuse(errno, format_args!("{verb}: a fault is in force")))
}

/// The ways in which verbs return errors.
pub(crate) mod how {
    pub(crate) use crate::errno::{minus_one, null};

    /// Returns the number itself.
    pub(crate) fn errno(errno: core::ffi::c_int) -> core::ffi::c_int {
        errno
    }
}

/// Replaces the functions of a new context that post and poll, if faults demand it.
pub(crate) fn fill(ops: &mut ibv_context_ops) {
    if faults::concern_verbs() {
        ops.poll_cq = Some(poll_cq);
        ops.post_send = Some(post_send);
        ops.post_recv = Some(post_recv);
        ops.post_srq_recv = Some(post_srq_recv);
    }
}

unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    if let Some(errno) = failure("ibv_poll_cq") {
        set_errno(errno);
        return -1;
    }
    // SAFETY: the arguments are those of the program, and a live queue has an open context.
    unsafe {
        match queue.is_null() || !context_of((*queue).context).settings.are_active() {
            true => cq::poll_cq(queue, entries, wc),
            false => hooks::poll_cq(queue, entries, wc),
        }
    }
}

/// Defines a function that posts a list, or fails and names the first element as the bad one.
macro_rules! posting {
    ($name:ident, $verb:literal, $queue:ty, $wr:ty) => {
        unsafe extern "C" fn $name(
            queue: *mut $queue,
            list: *mut $wr,
            bad_wr: *mut *mut $wr,
        ) -> c_int {
            if let Some(errno) = failure($verb) {
                // SAFETY: the program passes a place for the pointer, or NULL.
                if let Some(bad_wr) = unsafe { bad_wr.as_mut() } {
                    *bad_wr = list;
                }
                return errno;
            }
            // SAFETY: the arguments are those of the program, and a live queue has an open
            // context.
            unsafe {
                match queue.is_null() || !context_of((*queue).context).settings.are_active() {
                    true => post::$name(queue, list, bad_wr),
                    false => hooks::$name(queue, list, bad_wr),
                }
            }
        }
    };
}

posting!(post_send, "ibv_post_send", ibv_qp, ibv_send_wr);
posting!(post_recv, "ibv_post_recv", ibv_qp, ibv_recv_wr);
posting!(post_srq_recv, "ibv_post_srq_recv", ibv_srq, ibv_recv_wr);

/// Writes what the faults did, when the process exits.
pub(crate) fn tell() {
    let lines = faults::report();
    if lines.is_empty() || std::env::var_os(ferroce_control::path::QUIET_VARIABLE).is_some() {
        return;
    }
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let program = program.trim_end();
    let text: String = lines
        .iter()
        .map(|line| format!("faults: {program}: {line}\n"))
        .collect();
    let _closed = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Appends the sources below a folder.
    fn read(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => read(&path, text),
                false => text.push_str(&std::fs::read_to_string(path).unwrap()),
            }
        }
    }

    #[test]
    fn every_verb_that_the_grammar_knows_can_fail() {
        let mut text = String::new();
        read(
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")),
            &mut text,
        );
        for (verb, _) in ferroce_faults::VERBS {
            let hooked = text.contains(&format!("provoke!(\"{verb}\""));
            let replaced = text.contains(&format!("failure(\"{verb}\")"))
                || text.contains(&format!(", \"{verb}\", ibv_"));
            assert!(hooked || replaced, "{verb} never fails");
        }
    }
}
