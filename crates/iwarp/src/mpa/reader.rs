//! Collects one frame from a byte stream that is cut anywhere.

use super::error::FrameError;
use super::frame::{Frame, FrameKind, HEADER_LEN};

/// A frame that is being received. It holds at most the bytes of one frame.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    kind: FrameKind,
    bytes: Vec<u8>,
}

impl Reader {
    pub(super) fn new(kind: FrameKind) -> Reader {
        Reader {
            kind,
            bytes: Vec::new(),
        }
    }

    /// Takes bytes up to the end of the frame. Returns their number, and the frame once it is
    /// complete.
    pub(super) fn receive(&mut self, input: &[u8]) -> Result<(usize, Option<Frame>), FrameError> {
        let mut taken = self.fill(input, HEADER_LEN);
        // A peer that speaks another protocol may send less than a header and wait.
        let key = self.kind.key();
        let have = self.bytes.len().min(key.len());
        if self.bytes[..have] != key[..have] {
            return Err(FrameError::Key {
                expected: self.kind,
            });
        }
        let Some(header) = self.bytes.first_chunk() else {
            return Ok((taken, None));
        };
        let length = Frame::length(header, self.kind)?;
        taken += self.fill(&input[taken..], length);
        if self.bytes.len() < length {
            return Ok((taken, None));
        }
        let frame = Frame::decode(&self.bytes, self.kind)?;
        self.bytes = Vec::new();
        Ok((taken, Some(frame)))
    }

    /// Takes bytes until the reader holds `length`. Returns their number.
    fn fill(&mut self, input: &[u8], length: usize) -> usize {
        let missing = length.saturating_sub(self.bytes.len()).min(input.len());
        self.bytes.extend_from_slice(&input[..missing]);
        missing
    }
}
