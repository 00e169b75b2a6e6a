//! Bytes that decide what happens.

/// What is left of them; when nothing is, every answer is the first one.
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

    /// A number smaller than `count`, which is not 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// True about once in so many times.
    pub(super) fn one_in(&mut self, times: u8) -> bool {
        self.byte() % times == times - 1
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// The place of something in a list, if there is anything.
    pub(super) fn index<T>(&mut self, list: &[T]) -> Option<usize> {
        match list.len() {
            0 => None,
            count => Some(self.below(count)),
        }
    }
}
