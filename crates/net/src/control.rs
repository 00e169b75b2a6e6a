//! Control messages (`cmsg`), the ancillary data of a datagram.
//!
//! The kernel's layout of a message: a length of pointer width, the level, the type, then
//! the data. Each message is aligned to the width of a pointer.

const WORD: usize = size_of::<usize>();
const HEADER: usize = WORD + 8;

const fn align(len: usize) -> usize {
    len.next_multiple_of(WORD)
}

/// A buffer for control messages, aligned as the kernel requires.
#[derive(Copy, Clone)]
#[repr(C, align(8))]
pub(crate) struct ControlBuf<const N: usize> {
    bytes: [u8; N],
}

impl<const N: usize> ControlBuf<N> {
    pub(crate) const EMPTY: ControlBuf<N> = ControlBuf { bytes: [0; N] };

    /// Writes a message at offset `at`. Returns the offset of the next message.
    pub(crate) fn put<const D: usize>(
        &mut self,
        at: usize,
        level: i32,
        kind: i32,
        data: [u8; D],
    ) -> usize {
        let end = at + align(HEADER + D);
        let message = &mut self.bytes[at..end];
        message[..WORD].copy_from_slice(&(HEADER + D).to_ne_bytes());
        message[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        message[WORD + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER..HEADER + D].copy_from_slice(&data);
        end
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    /// Returns the messages that the kernel wrote into the first `len` bytes.
    pub(crate) fn messages(&self, len: usize) -> Messages<'_> {
        Messages(&self.bytes[..len.min(N)])
    }
}

/// Iterator over received control messages.
pub(crate) struct Messages<'a>(&'a [u8]);

/// One control message.
pub(crate) struct Message<'a> {
    pub(crate) level: i32,
    pub(crate) kind: i32,
    pub(crate) data: &'a [u8],
}

impl Message<'_> {
    /// Returns the data as a number: the kernel writes one byte or an `int`.
    pub(crate) fn number(&self) -> Option<i32> {
        match *self.data {
            [byte] => Some(i32::from(byte)),
            _ => self.data.first_chunk().map(|b| i32::from_ne_bytes(*b)),
        }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let (len, rest) = self.0.split_first_chunk::<WORD>()?;
        let len = usize::from_ne_bytes(*len);
        let (level, rest) = rest.split_first_chunk::<4>()?;
        let kind = rest.first_chunk::<4>()?;
        let message = Message {
            level: i32::from_ne_bytes(*level),
            kind: i32::from_ne_bytes(*kind),
            data: self.0.get(HEADER..len)?,
        };
        self.0 = self.0.get(align(len)..).unwrap_or_default();
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_messages_are_read_back() {
        let mut buf = ControlBuf::<128>::EMPTY;
        let mut at = buf.put(0, 1, 2, [7]);
        at = buf.put(at, 3, 4, 258i32.to_ne_bytes());
        at = buf.put(at, 5, 6, [9; 12]);
        let read: Vec<_> = buf
            .messages(at)
            .map(|m| (m.level, m.kind, m.number(), m.data.len()))
            .collect();
        let nines = i32::from_ne_bytes([9; 4]);
        assert_eq!(
            read,
            [
                (1, 2, Some(7), 1),
                (3, 4, Some(258), 4),
                (5, 6, Some(nines), 12)
            ]
        );
    }

    #[test]
    fn truncated_message_ends_the_iteration() {
        let mut buf = ControlBuf::<64>::EMPTY;
        let end = buf.put(0, 1, 2, [1; 8]);
        for len in 0..HEADER + 8 {
            assert_eq!(buf.messages(len).count(), 0, "{len} bytes");
        }
        assert_eq!(buf.messages(end).count(), 1);
        assert_eq!(ControlBuf::<64>::EMPTY.messages(64).count(), 0, "length 0");
    }
}
