//! Routines that may fault, and say so.
//!
//! Each is written in assembly so that the fault handler can tell from the
//! faulting instruction alone that it is one of ours, and knows that returning
//! through [`faulted`] is safe: none has touched the stack or a register that a
//! caller relies on.

use core::arch::naked_asm;

use ferroce_transport::Fault;

/// Copies; returns zero, or something else after a fault.
#[unsafe(naked)]
unsafe extern "sysv64" fn copy(to: *mut u8, from: *const u8, length: usize) -> usize {
    naked_asm!(
        "cmp rdx, 64",
        "jb 3f",
        "2:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "sub rdx, 64",
        "cmp rdx, 64",
        "jae 2b",
        "3:",
        "mov rcx, rdx",
        "rep movsb",
        "xor eax, eax",
        "ret",
    )
}

/// Compares with `*value` and swaps; what was there goes to `*value`.
#[unsafe(naked)]
unsafe extern "sysv64" fn compare_exchange(at: *mut u64, value: *mut u64, new: u64) -> usize {
    naked_asm!(
        "mov rax, [rsi]",
        "lock cmpxchg [rdi], rdx",
        "mov [rsi], rax",
        "xor eax, eax",
        "ret",
    )
}

/// Adds `*value`; what was there goes to `*value`.
#[unsafe(naked)]
unsafe extern "sysv64" fn exchange_add(at: *mut u64, value: *mut u64) -> usize {
    naked_asm!(
        "mov rax, [rsi]",
        "lock xadd [rdi], rax",
        "mov [rsi], rax",
        "xor eax, eax",
        "ret",
    )
}

/// Stores eight bytes at once.
#[unsafe(naked)]
unsafe extern "sysv64" fn store_word(at: *mut u64, value: u64) -> usize {
    naked_asm!("xchg [rdi], rsi", "xor eax, eax", "ret")
}

/// Where a routine goes on after a fault: it returns to its caller, with one.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn faulted() -> usize {
    naked_asm!("mov eax, 1", "ret")
}

/// No routine is longer.
const LONGEST: usize = 96;

/// Whether the instruction at `address` belongs to one of the routines.
pub(super) fn contains(address: usize) -> bool {
    [
        copy as *const () as usize,
        compare_exchange as *const () as usize,
        exchange_add as *const () as usize,
        store_word as *const () as usize,
    ]
    .iter()
    .any(|&start| (start..start + LONGEST).contains(&address))
}

pub(super) fn read(address: u64, into: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: `into` is ours to write; a fault at `address` is reported. That
    // the program may change the bytes meanwhile is what RDMA is: no Rust
    // reference to them exists.
    let failed = unsafe { copy(into.as_mut_ptr(), address as *const u8, into.len()) };
    check(failed, address)
}

pub(super) fn write(address: u64, data: &[u8]) -> Result<(), Fault> {
    // SAFETY: `data` is ours to read. The program registered the memory at
    // `address` for writing and owns all consequences; a fault is reported.
    let failed = unsafe { copy(address as *mut u8, data.as_ptr(), data.len()) };
    check(failed, address)
}

pub(super) fn compare_swap(address: u64, expected: u64, new: u64) -> Result<u64, Fault> {
    let mut value = expected;
    // SAFETY: as for `write`; `value` is ours.
    let failed = unsafe { compare_exchange(address as *mut u64, &raw mut value, new) };
    check(failed, address).map(|()| value)
}

pub(super) fn fetch_add(address: u64, add: u64) -> Result<u64, Fault> {
    let mut value = add;
    // SAFETY: as for `write`; `value` is ours.
    let failed = unsafe { exchange_add(address as *mut u64, &raw mut value) };
    check(failed, address).map(|()| value)
}

pub(super) fn store(address: u64, value: u64) -> Result<(), Fault> {
    // SAFETY: as for `write`.
    let failed = unsafe { store_word(address as *mut u64, value) };
    check(failed, address)
}

fn check(failed: usize, address: u64) -> Result<(), Fault> {
    match failed {
        0 => Ok(()),
        _ => Err(Fault { address }),
    }
}
