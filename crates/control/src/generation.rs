//! A number that tells a process from the one that it was forked from, without a system call.
//!
//! The number is in a page that the kernel fills with zeros in a forked child
//! (`MADV_WIPEONFORK`), also after a `clone` that no function of libc has made. One connection
//! of rdma_cm asks 44 times whether the process was forked.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The page; null before the first use.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
/// The last number that this process or one of its ancestors got.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Stands for a page that the kernel does not wipe: numbers are process numbers.
static WITHOUT_PAGE: AtomicU64 = AtomicU64::new(0);

const PAGE_SIZE: usize = 4096;

/// Returns the number of this process. It differs from those of all ancestors.
#[inline]
pub fn generation() -> u64 {
    // SAFETY: the pointer is null, or that of a page or a static, which are never freed.
    let page = unsafe { PAGE.load(Ordering::Acquire).as_ref() };
    match page.map_or(0, |page| page.load(Ordering::Acquire)) {
        0 => first_use(),
        number => number,
    }
}

/// Sets the number of a new process.
#[cold]
fn first_use() -> u64 {
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let new = new_page();
        let (set, unset) = (Ordering::AcqRel, Ordering::Acquire);
        page = match PAGE.compare_exchange(page, new, set, unset) {
            Ok(_) => new,
            Err(first) => {
                free_page(new);
                first
            }
        };
    }
    if core::ptr::eq(page, &raw const WITHOUT_PAGE) {
        return u64::from(std::process::id());
    }
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    // SAFETY: a page that is never freed.
    let set = unsafe { &*page }.compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire);
    match set {
        Ok(_) => number,
        // Another thread of this process was first.
        Err(first) => first,
    }
}

/// Returns a page of zeros that is wiped in children.
fn new_page() -> *mut AtomicU64 {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address that the kernel chooses, and advice on this mapping,
    // which has no contents yet.
    unsafe {
        let page = mmap_anonymous(core::ptr::null_mut(), PAGE_SIZE, prot, flags);
        if let Ok(page) = page {
            if madvise(page, PAGE_SIZE, Advice::LinuxWipeOnFork).is_ok() {
                return page.cast();
            }
            free_page(page.cast());
        }
    }
    (&raw const WITHOUT_PAGE).cast_mut()
}

/// Frees a page that no thread has seen.
fn free_page(page: *mut AtomicU64) {
    if !core::ptr::eq(page, &raw const WITHOUT_PAGE) {
        // SAFETY: a mapping of `new_page`, to which there is no other pointer.
        let _cannot_fail = unsafe { munmap(page.cast(), PAGE_SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a child by a system call, as a program may that does not use libc's `fork`.
    fn child_of_clone(run: impl FnOnce() -> i32) -> i32 {
        // SAFETY: without CLONE_VM this is a fork. The child runs code that takes no lock.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(run()) };
        }
        let mut status = 0;
        // SAFETY: waits for the child of this process.
        let waited = unsafe { libc::waitpid(child as i32, &raw mut status, 0) };
        assert_eq!(waited, child as i32);
        status >> 8
    }

    #[test]
    fn child_and_grandchild_have_numbers_of_their_own() {
        let parent = generation();
        assert_eq!(generation(), parent);
        let status = child_of_clone(|| {
            let child = generation();
            if child == parent || generation() != child {
                return 1;
            }
            child_of_clone(|| i32::from([parent, child].contains(&generation())))
        });
        assert_eq!(status, 0);
        assert_eq!(generation(), parent);
    }
}
