//! An optional PSN in the size of a PSN.
//!
//! Queue pairs keep several of them in cache lines that every packet uses.

use ferroce_wire::Psn;

/// An optional PSN. PSNs have 24 bits, so a larger number means "none".
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
