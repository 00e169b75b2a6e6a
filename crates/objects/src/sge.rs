//! Walks along scatter/gather lists.

use crate::verbs::Sge;

/// Walks the parts of a scatter/gather list that hold the bytes `offset..offset + length` of
/// a message. Yields `(element, offset in the element, bytes)` in order.
#[inline]
pub fn spans<'a>(
    sges: impl IntoIterator<Item = &'a Sge>,
    offset: u64,
    length: u64,
) -> impl Iterator<Item = (&'a Sge, u64, u32)> {
    let end = offset + length;
    let mut start = 0;
    sges.into_iter().filter_map(move |sge| {
        let (from, to) = (start, start + u64::from(sge.length));
        start = to;
        let (first, last) = (from.max(offset), to.min(end));
        (first < last).then(|| (sge, first - from, (last - first) as u32))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_exactly_the_bytes_asked_for() {
        let sge = |addr, length| Sge {
            addr,
            length,
            lkey: 0,
        };
        let sges = [sge(100, 10), sge(200, 0), sge(300, 5), sge(400, 20)];
        let walk = |offset, length| -> Vec<(u64, u32)> {
            spans(&sges, offset, length)
                .map(|(sge, at, n)| (sge.addr + at, n))
                .collect()
        };
        assert_eq!(walk(0, 35), [(100, 10), (300, 5), (400, 20)]);
        assert_eq!(walk(9, 7), [(109, 1), (300, 5), (400, 1)]);
        assert_eq!(walk(10, 5), [(300, 5)]);
        assert_eq!(walk(16, 4), [(401, 4)]);
        assert_eq!(walk(3, 0), []);
        assert_eq!(walk(30, 100), [(415, 5)], "bytes beyond the list");
    }
}
