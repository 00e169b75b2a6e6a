//! How a thread behaves towards others that want its processor.
//!
//! A thread that only looks whether it is needed should not interrupt the very
//! program it watches. With SCHED_BATCH the kernel lets it run at once on an idle
//! processor, and on a busy one when the thread there has had its share.

/// The scheduling policy of the current thread.
#[derive(Debug)]
pub(crate) struct Manners {
    polite: bool,
    /// The program gave its threads a policy of their own: it knows better.
    fixed: bool,
}

impl Manners {
    pub(crate) fn new() -> Manners {
        // SAFETY: asks about the calling thread, and touches no memory.
        let policy = unsafe { libc::sched_getscheduler(0) };
        Manners {
            polite: false,
            fixed: policy != libc::SCHED_OTHER,
        }
    }

    /// Chooses whether to wait for others; costs nothing if that was so before.
    pub(crate) fn yield_to_others(&mut self, polite: bool) {
        if self.fixed || self.polite == polite {
            return;
        }
        let policy = match polite {
            true => libc::SCHED_BATCH,
            false => libc::SCHED_OTHER,
        };
        let param = libc::sched_param { sched_priority: 0 };
        // SAFETY: changes the calling thread only; `param` outlives the call.
        let result = unsafe { libc::sched_setscheduler(0, policy, &raw const param) };
        if result == 0 {
            self.polite = polite;
        } else {
            // A sandbox may forbid it. Once is enough to know.
            self.fixed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: as above.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_thread_yields_and_comes_back() {
        // Whoever runs the tests may have chosen one for them.
        let usual = libc::sched_param { sched_priority: 0 };
        // SAFETY: changes this thread only; `usual` outlives the call.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const usual) };
        let mut manners = Manners::new();
        assert_eq!(policy(), libc::SCHED_OTHER);
        manners.yield_to_others(true);
        assert_eq!(policy(), libc::SCHED_BATCH);
        assert!(Manners::new().fixed, "somebody chose a policy");
        manners.yield_to_others(false);
        assert_eq!(policy(), libc::SCHED_OTHER);
    }
}
