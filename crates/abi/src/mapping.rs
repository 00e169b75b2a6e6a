//! Pages of memory: checking that they are mapped, and mapping a file.

use crate::errno::refuse;
use core::ffi::c_int;
use core::ops::Range;
use core::ptr;

/// The bits of an address that are the offset in its page.
pub(crate) const OFFSET: u64 = PAGE - 1;
const PAGE: u64 = 4096;
/// Number of pages per call of `mincore`, which writes a byte for each. The bytes are on the stack of
/// the program's thread, which may have 16 KiB in all (`PTHREAD_STACK_MIN`, threads of Argobots).
const CHUNK: u64 = 1 << 10;

/// Returns the pages that a range touches; `None` if it leaves the address space.
pub(crate) fn pages(addr: u64, length: u64) -> Option<Range<u64>> {
    let end = addr.checked_add(length)?.checked_next_multiple_of(PAGE)?;
    Some(addr & !OFFSET..end)
}

/// Checks that all pages are mapped; EFAULT if one is not.
pub(crate) fn check_mapped(pages: Range<u64>) -> Result<(), c_int> {
    let mut resident = [0u8; CHUNK as usize];
    let mut at = pages.start;
    while at < pages.end {
        let bytes = (pages.end - at).min(CHUNK * PAGE);
        // SAFETY: `resident` has a byte for each of the pages.
        let asked = unsafe {
            let start = ptr::without_provenance_mut(at as usize);
            libc::mincore(start, bytes as usize, resident.as_mut_ptr())
        };
        // Other errors say nothing about the mapping.
        if asked != 0 && last_error() == libc::ENOMEM {
            return Err(refuse(
                libc::EFAULT,
                format_args!("memory at {at:#x} is not mapped"),
            ));
        }
        at += bytes;
    }
    Ok(())
}

/// Prefetches pages. With `now`, waits until they are present.
pub(crate) fn fetch(pages: Range<u64>, write: bool, now: bool) -> Result<(), c_int> {
    let advice = match (now, write) {
        (false, _) => libc::MADV_WILLNEED,
        (true, false) => libc::MADV_POPULATE_READ,
        (true, true) => libc::MADV_POPULATE_WRITE,
    };
    let length = (pages.end - pages.start) as usize;
    // SAFETY: none of these advices changes the contents of the memory.
    let done = unsafe {
        let start = ptr::without_provenance_mut(pages.start as usize);
        libc::madvise(start, length, advice)
    };
    match done != 0 && matches!(last_error(), libc::ENOMEM | libc::EFAULT | libc::EHWPOISON) {
        true => Err(refuse(
            libc::EFAULT,
            format_args!(
                "memory at {:#x} is not mapped, or does not allow the access",
                pages.start
            ),
        )),
        false => Ok(()),
    }
}

/// The errno and the cause of a mapping that failed.
pub(crate) struct Unmapped(pub(crate) c_int, pub(crate) String);

/// A mapping of a part of a file.
pub(crate) struct Mapping {
    start: *mut libc::c_void,
    length: usize,
    /// Offset of the part in its first page.
    offset: usize,
}

// SAFETY: the mapping is not tied to a thread, and there are no references to it.
unsafe impl Send for Mapping {}
// SAFETY: nothing in this type accesses the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a part of a file; EOPNOTSUPP if the file cannot be mapped.
    pub(crate) fn of_file(
        fd: c_int,
        offset: u64,
        length: usize,
        writable: bool,
    ) -> Result<Mapping, Unmapped> {
        let invalid = |why: String| Unmapped(libc::EINVAL, why);
        let pages = pages(offset, length as u64).ok_or_else(|| {
            invalid(format!(
                "{length} bytes at offset {offset:#x} pass the end of the address space"
            ))
        })?;
        let file_offset = i64::try_from(pages.start)
            .map_err(|_| invalid(format!("offset {offset:#x} is above 2^63")))?;
        if length == 0 {
            return Err(invalid("the memory region has 0 bytes".into()));
        }
        if size_of(fd)?.is_some_and(|size| offset + length as u64 > size) {
            return Err(invalid(format!(
                "{length} bytes at offset {offset:#x} pass the end of the dma-buf"
            )));
        }
        let protection = match writable {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_READ,
        };
        let whole = (pages.end - pages.start) as usize;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            let anywhere = ptr::null_mut();
            libc::mmap(
                anywhere,
                whole,
                protection,
                libc::MAP_SHARED,
                fd,
                file_offset,
            )
        };
        if start == libc::MAP_FAILED {
            let errno = match last_error() {
                error @ (libc::EACCES | libc::EPERM | libc::ENOMEM) => error,
                _ => libc::EOPNOTSUPP,
            };
            let why = format!("file descriptor {fd} cannot be mapped");
            return Err(Unmapped(errno, why));
        }
        Ok(Mapping {
            start,
            length: whole,
            offset: (offset & OFFSET) as usize,
        })
    }

    /// Returns the address of the first byte of the part.
    pub(crate) fn start(&self) -> u64 {
        self.start as u64 + self.offset as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the region that used it is deregistered.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

/// Returns the size of a file; `None` if files of its type have none.
fn size_of(fd: c_int) -> Result<Option<u64>, Unmapped> {
    // SAFETY: `lseek` changes only the position, which is restored.
    unsafe {
        let before = libc::lseek(fd, 0, libc::SEEK_CUR);
        if before < 0 && last_error() == libc::EBADF {
            let why = format!("file descriptor {fd} is not open");
            return Err(Unmapped(libc::EBADF, why));
        }
        let end = libc::lseek(fd, 0, libc::SEEK_END);
        libc::lseek(fd, before.max(0), libc::SEEK_SET);
        Ok(u64::try_from(end).ok().filter(|&end| end > 0))
    }
}

fn last_error() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_extended_to_whole_pages() {
        assert_eq!(pages(0x1000, 0), Some(0x1000..0x1000));
        assert_eq!(pages(0x1001, 0), Some(0x1000..0x2000));
        assert_eq!(pages(0x1fff, 2), Some(0x1000..0x3000));
        assert_eq!(pages(u64::MAX, 1), None);
        assert_eq!(pages(u64::MAX - 10, 5), None);
    }

    #[test]
    fn unmapped_memory_is_refused() {
        let bytes = vec![0u8; 100_000];
        let all = pages(bytes.as_ptr() as u64, bytes.len() as u64).unwrap();
        assert_eq!(check_mapped(all.clone()), Ok(()));
        assert_eq!(fetch(all.clone(), true, true), Ok(()));
        assert_eq!(fetch(all, false, false), Ok(()));
        assert_eq!(check_mapped(0..0x1000), Err(libc::EFAULT));
        assert_eq!(check_mapped(0..1 << 46), Err(libc::EFAULT));
        assert_eq!(fetch(0..0x1000, false, true), Err(libc::EFAULT));
    }
}
