//! Limits of the device: those of the kernel's rxe, which programs are tested with.

use core::ffi::c_int;

pub(crate) const MAX_QP: c_int = (1 << 20) - 16;
pub(crate) const MAX_QP_WR: c_int = 1 << 20;
pub(crate) const MAX_SGE: c_int = 32;
pub(crate) const MAX_CQ: c_int = 1 << 20;
pub(crate) const MAX_CQE: c_int = (1 << 20) - 1;
pub(crate) const MAX_MR: c_int = (1 << 19) - 1;
pub(crate) const MAX_PD: c_int = 1 << 20;
pub(crate) const MAX_RD_ATOMIC: c_int = 128;
pub(crate) const MAX_RES_RD_ATOMIC: c_int = 0x3f000;
pub(crate) const MAX_MCAST_GROUPS: c_int = 8192;
pub(crate) const MAX_MCAST_QP_ATTACH: c_int = 56;
pub(crate) const MAX_TOTAL_MCAST_QP_ATTACH: c_int = 0x70000;
pub(crate) const MAX_AH: c_int = 32767;
pub(crate) const MAX_SRQ: c_int = 917_503;
pub(crate) const MAX_SRQ_WR: c_int = 1 << 20;
pub(crate) const MAX_SRQ_SGE: c_int = 27;
pub(crate) const MAX_PKEYS: u16 = 64;
pub(crate) const LOCAL_CA_ACK_DELAY: u8 = 15;
/// Maximum number of bytes of device memory, in one allocation and in total.
pub(crate) const MAX_DM_SIZE: u64 = 1 << 20;

/// Number of entries of the GID table, including empty ones.
pub(crate) const GID_TABLE: c_int = 1024;
/// Maximum length of a message in bytes.
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// Frequency of the clock of completion timestamps in kHz: they count nanoseconds.
pub(crate) const CLOCK_KHZ: u64 = 1_000_000;

/// Limits of links of type siw: those of the kernel's siw.
pub(crate) mod siw {
    use core::ffi::c_int;

    /// The letters "bmt".
    pub(crate) const VENDOR_ID: u32 = 0x62_6d74;
    pub(crate) const VENDOR_PART_ID: u32 = 1;
    pub(crate) const MAX_QP: c_int = 1024 * 100;
    pub(crate) const MAX_QP_WR: c_int = 1 << 15;
    pub(crate) const MAX_SGE: c_int = 6;
    pub(crate) const MAX_SGE_RD: c_int = 1;
    pub(crate) const MAX_CQ: c_int = 1024 * 100;
    pub(crate) const MAX_SRQ_WR: c_int = MAX_QP_WR * 10;
}
