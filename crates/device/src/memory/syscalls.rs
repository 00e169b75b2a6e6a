//! Guarded access through the kernel, which is slow and needs no signal handler.

use ferroce_roce::Fault;
use libc::iovec;

pub(super) fn read(address: u64, into: &mut [u8]) -> Result<(), Fault> {
    let local = piece(into.as_mut_ptr() as u64, into.len());
    let remote = piece(address, into.len());
    // SAFETY: `local` describes `into`, which this function borrows; the kernel checks
    // `remote`.
    let moved = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    check(moved, into.len(), address)
}

pub(super) fn write(address: u64, data: &[u8]) -> Result<(), Fault> {
    let local = piece(data.as_ptr() as u64, data.len());
    let remote = piece(address, data.len());
    // SAFETY: `local` describes `data`, which the call only reads; the kernel
    // checks `remote`, memory that the program registered for writing.
    let moved = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    check(moved, data.len(), address)
}

pub(super) fn compare_swap(address: u64, expected: u64, new: u64) -> Result<u64, Fault> {
    let word = writable_word(address)?;
    let order = std::sync::atomic::Ordering::SeqCst;
    Ok(word
        .compare_exchange(expected, new, order, order)
        .unwrap_or_else(|found| found))
}

pub(super) fn fetch_add(address: u64, add: u64) -> Result<u64, Fault> {
    Ok(writable_word(address)?.fetch_add(add, std::sync::atomic::Ordering::SeqCst))
}

pub(super) fn store(address: u64, value: u64) -> Result<(), Fault> {
    writable_word(address)?.store(value, std::sync::atomic::Ordering::SeqCst);
    Ok(())
}

/// Writes a range back to the file that it maps.
pub(super) fn persist(address: u64, length: u64) -> Result<(), Fault> {
    let page = page_size();
    let start = address & !(page - 1);
    let length = (address + length - start) as usize;
    // SAFETY: msync does not change memory; it fails where none is mapped.
    match unsafe { libc::msync(start as *mut libc::c_void, length, libc::MS_SYNC) } {
        0 => Ok(()),
        _ => Err(Fault::host(address)),
    }
}

/// Returns a word that was writable a moment ago.
fn writable_word(address: u64) -> Result<&'static std::sync::atomic::AtomicU64, Fault> {
    let page = page_size();
    let start = (address & !(page - 1)) as *mut libc::c_void;
    // SAFETY: populating changes no content; it fails with an error where a
    // write would fault.
    let populated = unsafe { libc::madvise(start, page as usize, libc::MADV_POPULATE_WRITE) };
    if populated != 0 || !address.is_multiple_of(8) {
        return Err(Fault::host(address));
    }
    // SAFETY: the word is aligned, and was writable a moment ago. The program shares it with
    // its peers by atomics only: that is the contract of remote atomics.
    Ok(unsafe { std::sync::atomic::AtomicU64::from_ptr(address as *mut u64) })
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

fn piece(address: u64, length: usize) -> iovec {
    iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: length,
    }
}

fn check(moved: isize, wanted: usize, address: u64) -> Result<(), Fault> {
    match usize::try_from(moved) {
        Ok(moved) if moved == wanted => Ok(()),
        _ => Err(Fault::host(address)),
    }
}
