//! The bytes that select the calls and their arguments.

/// The remaining bytes. When none are left, every choice is the first.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl Input<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    pub(super) fn word(&mut self) -> u32 {
        u32::from_le_bytes([(); 4].map(|()| self.byte()))
    }

    /// Returns a number below `count`, which is not 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// Returns true once in `count` times on average.
    pub(super) fn one_in(&mut self, times: u8) -> bool {
        self.byte() % times == times - 1
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns an index into a list, unless the list is empty.
    pub(super) fn index<T>(&mut self, list: &[T]) -> Option<usize> {
        match list.len() {
            0 => None,
            count => Some(self.below(count)),
        }
    }
}
