//! Memory access routines that return an error after a fault.
//!
//! The routines are written in assembly, so that the fault handler recognises them by the
//! address of the faulting instruction. To return through [`faulted`] is safe, because no
//! routine changes the stack or a register that its caller relies on.

use core::arch::global_asm;

use ferroce_roce::Fault;

unsafe extern "sysv64" {
    /// Copies bytes. Returns zero, or another number after a fault.
    #[link_name = "ferroce_access_copy"]
    pub(super) fn copy(to: *mut u8, from: *const u8, length: usize) -> usize;
    /// Compares with `*value` and swaps. Stores the original value in `*value`.
    #[link_name = "ferroce_access_compare_exchange"]
    fn compare_exchange(at: *mut u64, value: *mut u64, new: u64) -> usize;
    /// Adds `*value`. Stores the original value in `*value`.
    #[link_name = "ferroce_access_exchange_add"]
    fn exchange_add(at: *mut u64, value: *mut u64) -> usize;
    /// Stores eight bytes in one access.
    #[link_name = "ferroce_access_store_word"]
    fn store_word(at: *mut u64, value: u64) -> usize;
    /// Continuation of a routine after a fault: returns one to the routine's caller. It
    /// lies behind all routines.
    #[link_name = "ferroce_access_faulted"]
    pub(super) fn faulted() -> usize;
}

// `copy` comes first. It avoids `rep movsb`, whose start is slow even for no bytes. The last
// piece is counted from the end and may overlap the one before it. Programs poll the last
// byte of a message, so that byte is written last, and only once.
global_asm!(
    ".pushsection .text.ferroce_access, \"ax\", @progbits",
    ".macro ferroce_routine name",
    ".p2align 4",
    ".globl ferroce_access_\\name",
    ".hidden ferroce_access_\\name",
    ".type ferroce_access_\\name, @function",
    "ferroce_access_\\name:",
    ".endm",
    "ferroce_routine copy",
    "cmp rdx, 64",
    "ja 2f",
    "cmp rdx, 32",
    "ja 3f",
    "cmp rdx, 16",
    "jae 4f",
    "cmp rdx, 8",
    "jae 5f",
    "cmp rdx, 4",
    "jae 6f",
    "jmp 7f",
    ".p2align 4",
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
    "ja 2b",
    "movups xmm0, [rsi + rdx - 64]",
    "movups xmm1, [rsi + rdx - 48]",
    "movups [rdi + rdx - 64], xmm0",
    "movups [rdi + rdx - 48], xmm1",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "xor eax, eax",
    "ret",
    "3:", // 33 to 64 bytes
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "xor eax, eax",
    "ret",
    "4:", // 16 to 32
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "je 9f",
    "movups [rdi + rdx - 16], xmm1",
    "xor eax, eax",
    "ret",
    "5:", // 8 to 15
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "je 9f",
    "mov [rdi + rdx - 8], rcx",
    "xor eax, eax",
    "ret",
    "6:", // 4 to 7
    "mov eax, [rsi]",
    "mov ecx, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "je 9f",
    "mov [rdi + rdx - 4], ecx",
    "xor eax, eax",
    "ret",
    "7:", // 0 to 3
    "xor ecx, ecx",
    "8:",
    "cmp rcx, rdx",
    "jae 9f",
    "movzx eax, byte ptr [rsi + rcx]",
    "mov byte ptr [rdi + rcx], al",
    "add rcx, 1",
    "jmp 8b",
    "9:",
    "xor eax, eax",
    "ret",
    "ferroce_routine compare_exchange",
    "mov rax, [rsi]",
    "lock cmpxchg [rdi], rdx",
    "mov [rsi], rax",
    "xor eax, eax",
    "ret",
    "ferroce_routine exchange_add",
    "mov rax, [rsi]",
    "lock xadd [rdi], rax",
    "mov [rsi], rax",
    "xor eax, eax",
    "ret",
    "ferroce_routine store_word",
    "xchg [rdi], rsi",
    "xor eax, eax",
    "ret",
    "ferroce_routine faulted",
    "mov eax, 1",
    "ret",
    ".purgem ferroce_routine",
    ".popsection",
);

/// Returns true if the instruction at `address` belongs to one of the routines.
pub(super) fn contains(address: usize) -> bool {
    (copy as *const () as usize..faulted as *const () as usize).contains(&address)
}

pub(super) fn read(address: u64, into: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: `into` is writable; a fault at `address` is reported. The program may change
    // the bytes meanwhile, as RDMA permits: no Rust reference to them exists.
    let failed = unsafe { copy(into.as_mut_ptr(), address as *const u8, into.len()) };
    check(failed, address)
}

pub(super) fn write(address: u64, data: &[u8]) -> Result<(), Fault> {
    // SAFETY: `data` is readable. The program registered the memory at `address` for
    // writing; a fault is reported.
    let failed = unsafe { copy(address as *mut u8, data.as_ptr(), data.len()) };
    check(failed, address)
}

pub(super) fn compare_swap(address: u64, expected: u64, new: u64) -> Result<u64, Fault> {
    let mut value = expected;
    // SAFETY: as for `write`; `value` is a local variable.
    let failed = unsafe { compare_exchange(address as *mut u64, &raw mut value, new) };
    check(failed, address).map(|()| value)
}

pub(super) fn fetch_add(address: u64, add: u64) -> Result<u64, Fault> {
    let mut value = add;
    // SAFETY: as for `write`; `value` is a local variable.
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
        _ => Err(Fault::host(address)),
    }
}
