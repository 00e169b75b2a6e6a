//! Writes one FPDU to the output.

use ferroce_objects::{Fault, MemRef, Memory};

use super::Stream;
use crate::bugs::Bug;
use crate::crc::{self, CRC_LEN};
use crate::engine::Context;
use crate::fpdu::padding;
use crate::header::Header;
use crate::opcode::Opcode;
use crate::output::Checkpoint;

/// Payload below this many bytes is copied: an element of a gather list costs more.
const COPY_BELOW: usize = 256;

/// The payload of a segment.
pub(super) enum Payload<'a> {
    /// Bytes, which are copied.
    Bytes(&'a [u8]),
    /// Memory of a work request.
    Request(&'a [(MemRef, u32)]),
    /// Memory that the peer reads.
    Response(MemRef, u32),
}

impl Stream {
    /// Returns the bytes of payload that fit into an FPDU with this opcode.
    pub(super) fn max_payload(&self, opcode: Opcode) -> u32 {
        (self.max_fpdu - opcode.header_len() - CRC_LEN) as u32
    }

    /// Writes an FPDU. If its payload cannot be read, nothing is written.
    pub(super) fn write_fpdu(
        &mut self,
        cx: &Context,
        memory: &dyn Memory,
        header: &Header,
        payload: &Payload<'_>,
    ) -> Result<(), Fault> {
        let checkpoint = self.output.checkpoint();
        self.output.write(|out| header.encode(out));
        if let Err(fault) = self.write_payload(memory, payload) {
            self.output.rewind(checkpoint);
            return Err(fault);
        }
        self.write_trailer(cx, checkpoint, header.ulpdu_len().into());
        self.output.end_fpdu(header.last);
        Ok(())
    }

    /// Writes pad bytes and CRC of the FPDU that starts at the checkpoint.
    fn write_trailer(&mut self, cx: &Context, checkpoint: Checkpoint, ulpdu: usize) {
        let pad = padding(ulpdu);
        self.output
            .write(|out| out.extend_from_slice(&[0; 3][..pad]));
        let crc = match self.params.crc {
            true => {
                // With CRCs all payload has been copied: the FPDU is in the buffer.
                let fpdu = self.output.bytes_since(checkpoint);
                let uncovered = match cx.has_bug(Bug::CrcWithoutPad) {
                    true => pad,
                    false => 0,
                };
                crc::of(&fpdu[..fpdu.len() - uncovered])
            }
            false => [0; CRC_LEN],
        };
        self.output.write(|out| out.extend_from_slice(&crc));
    }

    /// Writes an FPDU without payload of the program's memory.
    pub(super) fn write_without_memory(&mut self, cx: &Context, header: &Header) {
        let checkpoint = self.output.checkpoint();
        self.output.write(|out| header.encode(out));
        self.write_trailer(cx, checkpoint, header.ulpdu_len().into());
        self.output.end_fpdu(header.last);
    }

    fn write_payload(&mut self, memory: &dyn Memory, payload: &Payload<'_>) -> Result<(), Fault> {
        match payload {
            Payload::Bytes(bytes) => self.output.write(|out| out.extend_from_slice(bytes)),
            Payload::Request(places) => {
                for &(at, length) in *places {
                    self.write_memory(memory, at, length, false)?;
                }
            }
            Payload::Response(at, length) => self.write_memory(memory, *at, *length, true)?,
        }
        Ok(())
    }

    fn write_memory(
        &mut self,
        memory: &dyn Memory,
        at: MemRef,
        length: u32,
        response: bool,
    ) -> Result<(), Fault> {
        let length = length as usize;
        if length == 0 {
            return Ok(());
        }
        match self.params.crc || length < COPY_BELOW {
            true => self.output.copy(memory, at, length),
            false => {
                self.output.refer(at, length, response);
                Ok(())
            }
        }
    }
}
