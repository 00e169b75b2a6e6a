//! A PSN that may be absent, in no more memory than a PSN.
//!
//! Queue pairs keep several of them, and their size is counted in cache lines.

use ferroce_wire::Psn;

/// A PSN, or none. PSNs have 24 bits, so any larger number can mean "none".
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct PsnMark(u32);

impl PsnMark {
    /// No PSN.
    pub(crate) const NONE: PsnMark = PsnMark(u32::MAX);

    /// Marks `psn`.
    #[inline]
    pub(crate) const fn at(psn: Psn) -> PsnMark {
        PsnMark(psn.value())
    }

    /// Returns the marked PSN, if there is one.
    #[inline]
    pub(crate) fn get(self) -> Option<Psn> {
        (self != PsnMark::NONE).then(|| Psn::new(self.0))
    }

    /// True if a PSN is marked that comes before `psn`.
    #[inline]
    pub(crate) fn is_before(self, psn: Psn) -> bool {
        self.get().is_some_and(|mark| mark.is_before(psn))
    }
}
