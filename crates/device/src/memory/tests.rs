//! Tests of guarded access: a bad access is an error, and the process survives.

use core::ptr;

use ferroce_roce::{MemRef, Memory, NULL_MEMORY, Time};

use super::ProcessMemory;

const PAGE: usize = 4096;

/// Pages that a test may unmap or protect.
struct Pages {
    start: *mut libc::c_void,
}

impl Pages {
    fn new(count: usize) -> Pages {
        // SAFETY: the call creates an anonymous mapping.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                count * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        Pages { start }
    }

    fn address(&self) -> u64 {
        self.start as u64
    }

    fn protect(&self, page: usize, how: libc::c_int) {
        // SAFETY: the page belongs to this test, and no reference into it exists.
        let done = unsafe { libc::mprotect(self.start.byte_add(page * PAGE), PAGE, how) };
        assert_eq!(done, 0);
    }

    fn unmap(&self, page: usize) {
        // SAFETY: the page belongs to this test, and no reference into it exists.
        let done = unsafe { libc::munmap(self.start.byte_add(page * PAGE), PAGE) };
        assert_eq!(done, 0);
    }
}

/// Returns access for tests, which pass addresses of their own [`Pages`] or unmapped ones.
fn current() -> ProcessMemory {
    // SAFETY: there are no references to the memory of `Pages`.
    unsafe { ProcessMemory::current() }
}

fn at(now: Time) -> ProcessMemory {
    // SAFETY: as for `current`.
    unsafe { ProcessMemory::at(now) }
}

fn both_ways(test: impl Fn(&ProcessMemory)) {
    let memory = current();
    assert!(!memory.is_slow(), "the handler is ours");
    test(&memory);
    test(&ProcessMemory {
        direct: false,
        #[cfg(target_arch = "x86_64")]
        _unblocked: None,
    });
}

#[test]
fn copies_of_every_length_are_exact() {
    both_ways(|memory| {
        let pages = Pages::new(2);
        for length in (0..300).chain([511, 512, 1000, 1024, 4096, 4099]) {
            let data: Vec<u8> = (0..length).map(|n| (n * 7 + length) as u8).collect();
            let address = pages.address() + (length % 61) as u64;
            memory.write(MemRef::host(address), &data).unwrap();
            let mut back = vec![0; length];
            memory.read(MemRef::host(address), &mut back).unwrap();
            assert_eq!(back, data);
        }
    });
}

/// Bytes beside the range are neither read nor written. One byte too far at either end is an
/// error.
#[test]
fn copies_stay_within_their_range() {
    both_ways(|memory| {
        let pages = Pages::new(3);
        pages.protect(0, libc::PROT_NONE);
        pages.protect(2, libc::PROT_NONE);
        let (start, end) = (
            pages.address() + PAGE as u64,
            pages.address() + 2 * PAGE as u64,
        );
        for length in (0..=130).chain([1000, 1024, 4095, 4096]) {
            let mut data = vec![0; length];
            for address in [start, end - length as u64] {
                memory.write(MemRef::host(start), &[7; PAGE]).unwrap();
                memory
                    .write(MemRef::host(address), &vec![9; length])
                    .unwrap();
                memory.read(MemRef::host(address), &mut data).unwrap();
                assert_eq!(data, vec![9; length]);
                let mut all = [0; PAGE];
                memory.read(MemRef::host(start), &mut all).unwrap();
                let nines = all.iter().filter(|&&byte| byte == 9).count();
                assert_eq!(nines, length, "and no others");
            }
            for address in [start - 1, end + 1 - length as u64] {
                let far = length > 0;
                assert_eq!(
                    memory.write(MemRef::host(address), &data).is_err(),
                    far,
                    "{length}"
                );
                assert_eq!(
                    memory.read(MemRef::host(address), &mut data).is_err(),
                    far,
                    "{length}"
                );
            }
        }
    });
}

#[test]
fn unmapped_memory_is_an_error_not_a_crash() {
    both_ways(|memory| {
        let pages = Pages::new(2);
        pages.unmap(1);
        let across = pages.address() + PAGE as u64 - 100;
        let mut buffer = [0; 200];
        assert!(memory.read(MemRef::host(across), &mut buffer).is_err());
        assert!(memory.write(MemRef::host(across), &buffer).is_err());
        let gone = pages.address() + PAGE as u64;
        assert!(memory.compare_swap(MemRef::host(gone), 0, 1).is_err());
        assert!(memory.fetch_add(MemRef::host(gone), 1).is_err());
        assert!(memory.store_release(MemRef::host(gone), [1; 8]).is_err());
        assert!(memory.read(MemRef::host(8), &mut buffer).is_err());
        assert!(memory.flush(MemRef::host(gone), 8, true).is_err());
    });
}

#[test]
fn read_only_memory_can_be_read_and_not_written() {
    both_ways(|memory| {
        let pages = Pages::new(1);
        memory
            .write(MemRef::host(pages.address()), &[7; 16])
            .unwrap();
        pages.protect(0, libc::PROT_READ);
        let mut buffer = [0; 16];
        memory
            .read(MemRef::host(pages.address()), &mut buffer)
            .unwrap();
        assert_eq!(buffer, [7; 16]);
        assert!(
            memory
                .write(MemRef::host(pages.address()), &[1; 16])
                .is_err()
        );
        assert!(memory.fetch_add(MemRef::host(pages.address()), 1).is_err());
        assert!(
            memory
                .compare_swap(MemRef::host(pages.address()), 0, 1)
                .is_err()
        );
        assert!(
            memory
                .store_release(MemRef::host(pages.address()), [1; 8])
                .is_err()
        );
    });
}

#[test]
fn atomics_return_the_original_value() {
    both_ways(|memory| {
        let pages = Pages::new(1);
        let at = pages.address() + 64;
        memory
            .store_release(MemRef::host(at), 5u64.to_ne_bytes())
            .unwrap();
        assert_eq!(memory.fetch_add(MemRef::host(at), 3), Ok(5));
        assert_eq!(memory.compare_swap(MemRef::host(at), 7, 1), Ok(8));
        assert_eq!(memory.compare_swap(MemRef::host(at), 8, 1), Ok(8));
        assert_eq!(memory.fetch_add(MemRef::host(at), 0), Ok(1));
    });
}

#[test]
fn null_memory_reads_as_zero_and_discards_writes() {
    both_ways(|memory| {
        let mut bytes = [7; 100];
        memory.write(MemRef::host(NULL_MEMORY), &bytes).unwrap();
        memory
            .read(MemRef::host(NULL_MEMORY + 5), &mut bytes)
            .unwrap();
        assert_eq!(bytes, [0; 100]);
    });
}

/// Changes the signal mask of this thread. Returns whether SIGSEGV and SIGBUS are blocked
/// afterwards.
fn blocked(how: libc::c_int, signals: &[libc::c_int]) -> [bool; 2] {
    // SAFETY: sigset_t is plain data; the calls fill it and change this thread's mask.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(how, &raw const set, ptr::null_mut());
        libc::pthread_sigmask(how, ptr::null(), &raw mut set);
        [libc::SIGSEGV, libc::SIGBUS].map(|signal| libc::sigismember(&raw const set, signal) == 1)
    }
}

/// A program with a signal thread blocks all signals in its other threads.
#[test]
fn blocked_signals_are_unblocked_for_the_copy() {
    let pages = Pages::new(2);
    pages.unmap(1);
    let gone = pages.address() + PAGE as u64;
    let mut now = Time::from_nanos(1_000_000_000);
    let faults = |memory: ProcessMemory| {
        assert!(!memory.is_slow(), "the handler is ours");
        assert!(memory.write(MemRef::host(gone), &[1; 100]).is_err());
        assert!(memory.fetch_add(MemRef::host(gone), 1).is_err());
    };
    faults(at(now));
    for signals in [&[libc::SIGSEGV][..], &[libc::SIGSEGV, libc::SIGBUS]] {
        // The mask of this thread was queried less than 50 us ago.
        now = now.after_nanos(50_000);
        let before = blocked(libc::SIG_BLOCK, signals);
        faults(at(now));
        assert_eq!(
            blocked(libc::SIG_BLOCK, &[]),
            before,
            "as the program had it"
        );
        // The mask of this thread is queried every time from now on.
        blocked(libc::SIG_UNBLOCK, signals);
        faults(at(now));
        let before = blocked(libc::SIG_BLOCK, signals);
        let outer = at(now);
        faults(at(now));
        faults(outer);
        assert_eq!(
            blocked(libc::SIG_BLOCK, &[]),
            before,
            "as the program had it"
        );
        faults(current());
        assert_eq!(blocked(libc::SIG_UNBLOCK, signals), [false; 2]);
    }
}
