//! The scheduling policy of the progress thread.
//!
//! A thread that only checks whether it is needed must not interrupt the program it serves.
//! Under SCHED_BATCH the kernel lets it run at once on an idle processor; on a busy one it
//! waits until the thread there has used up its time slice.

/// The scheduling policy of the current thread.
#[derive(Debug)]
pub(crate) struct SchedPolicy {
    batch: bool,
    /// True if the program chose a policy, or a sandbox forbids changes.
    fixed: bool,
}

impl SchedPolicy {
    pub(crate) fn new() -> SchedPolicy {
        // SAFETY: the call reads the policy of the calling thread and touches no memory.
        let policy = unsafe { libc::sched_getscheduler(0) };
        SchedPolicy {
            batch: false,
            fixed: policy != libc::SCHED_OTHER,
        }
    }

    /// Chooses SCHED_BATCH or SCHED_OTHER. Makes no system call if nothing changes.
    pub(crate) fn set_batch(&mut self, batch: bool) {
        if self.fixed || self.batch == batch {
            return;
        }
        let policy = match batch {
            true => libc::SCHED_BATCH,
            false => libc::SCHED_OTHER,
        };
        let param = libc::sched_param { sched_priority: 0 };
        // SAFETY: the call changes the calling thread only; `param` outlives it.
        let result = unsafe { libc::sched_setscheduler(0, policy, &raw const param) };
        if result == 0 {
            self.batch = batch;
        } else {
            self.fixed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: the call reads the policy of the calling thread and touches no memory.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn batch_policy_is_set_and_reset() {
        // The test runner may have another policy.
        let usual = libc::sched_param { sched_priority: 0 };
        // SAFETY: the call changes this thread only; `usual` outlives it.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const usual) };
        let mut sched = SchedPolicy::new();
        assert_eq!(policy(), libc::SCHED_OTHER);
        sched.set_batch(true);
        assert_eq!(policy(), libc::SCHED_BATCH);
        assert!(SchedPolicy::new().fixed, "a policy of the program stays");
        sched.set_batch(false);
        assert_eq!(policy(), libc::SCHED_OTHER);
    }
}
