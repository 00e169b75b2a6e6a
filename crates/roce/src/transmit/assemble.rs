//! Assembly: the bytes of packets, from headers and references to payload.

use ferroce_wire::Bth;
use ferroce_wire::icrc::{self, UniformIcrc};

use super::packet::Piece;
use super::{Batch, ICRC_LEN, Path, Run, TxPacket};
use crate::memory::{Fault, MemRef, Memory};

/// The ICRCs of the packets of a run.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Trailer {
    /// ICRCs for the IPv4 identifications 0, 1, 2, ..., which segmentation assigns.
    Numbered,
    /// ICRCs for identification 0.
    Unnumbered,
    /// Zeros, for a receiver that does not check ICRCs.
    Unset,
}

impl Batch {
    /// Announces the payload in the memory of GPUs to `memory`, so that one transfer fetches
    /// all of it. To be called before the runs are assembled; without, each packet is fetched
    /// by itself.
    #[inline]
    pub fn prefetch(&self, memory: &dyn Memory) {
        if self.reads_gpu {
            memory.prefetch(&mut self.gpu_ranges());
        }
    }

    /// Returns the ranges of payload in the memory of GPUs, in the order of packets.
    fn gpu_ranges(&self) -> impl Iterator<Item = (MemRef, u64)> {
        let entries = self.entries[..self.used].iter();
        entries.flat_map(|entry| {
            let first = entry.first_piece as usize;
            let pieces = self.pieces[first..first + entry.pieces as usize].iter();
            pieces.filter_map(|piece| match *piece {
                // The pieces of a uniform run are contiguous.
                Piece::Memory { at, length } if !at.is_host() => {
                    Some((at, u64::from(length) * u64::from(entry.count)))
                }
                Piece::Memory { .. } | Piece::Inline { .. } => None,
            })
        })
    }

    /// Writes the packets of a run to `out` without gaps. Returns the number of bytes. A
    /// packet whose payload cannot be read is left out, and its number is added to `faults`.
    pub fn assemble_run(
        &self,
        run: &Run,
        trailer: Trailer,
        memory: &dyn Memory,
        out: &mut [u8],
        faults: &mut Vec<(usize, Fault)>,
    ) -> usize {
        let (mut end, mut ip_id) = (0, 0);
        for entry in &self.entries[run.entries.clone()] {
            let has_icrc = trailer != Trailer::Unset;
            let uniform = (has_icrc && entry.count > 1).then(|| {
                let bytes = entry.header.buffer().first_chunk();
                let bytes = bytes.expect("a header is longer");
                UniformIcrc::new(run.path.icrc, entry.wire_len(), bytes)
            });
            for step in 0..entry.count {
                let packet = &mut out[end..];
                match self.write(entry, step, memory, packet) {
                    Ok(len) => {
                        let (body, rest) = packet.split_at_mut(len);
                        let crc = match &uniform {
                            Some(uniform) => uniform.compute(ip_id, body),
                            None if has_icrc => entry.icrc(&run.path, ip_id, body),
                            None => [0; ICRC_LEN],
                        };
                        rest[..ICRC_LEN].copy_from_slice(&crc);
                        end += len + ICRC_LEN;
                        ip_id += u16::from(trailer == Trailer::Numbered);
                    }
                    Err(fault) => faults.push(((entry.number + step) as usize, fault)),
                }
            }
        }
        end
    }

    /// Writes one packet with its ICRC to the start of `out`, and returns its length. `ip_id`
    /// is the IPv4 identification that the packet will have.
    pub fn assemble(
        &self,
        number: usize,
        path: &Path,
        ip_id: u16,
        memory: &dyn Memory,
        out: &mut [u8],
    ) -> Result<usize, Fault> {
        let entry = self.entry(number);
        let step = number as u32 - entry.number;
        let len = self.write(entry, step, memory, out)?;
        let crc = entry.icrc(path, ip_id, &out[..len]);
        out[len..len + ICRC_LEN].copy_from_slice(&crc);
        Ok(len + ICRC_LEN)
    }

    /// Writes packet `step` of an entry without ICRC, and returns its length.
    #[inline(always)]
    fn write(
        &self,
        entry: &TxPacket,
        step: u32,
        memory: &dyn Memory,
        out: &mut [u8],
    ) -> Result<usize, Fault> {
        let mut at = entry.header.len();
        match out.first_chunk_mut() {
            // A copy of constant size is fast. The payload overwrites the excess bytes.
            Some(front) => *front = *entry.header.buffer(),
            None => out[..at].copy_from_slice(entry.header()),
        }
        if step > 0 {
            out[Bth::PSN].copy_from_slice(&entry.header.psn().add(step).value().to_be_bytes());
        }
        let first = entry.first_piece as usize;
        for piece in &self.pieces[first..first + entry.pieces as usize] {
            match *piece {
                Piece::Memory { at: start, length } => {
                    let start = start.offset(u64::from(step) * u64::from(length));
                    memory.read(start, &mut out[at..at + length as usize])?;
                    at += length as usize;
                }
                Piece::Inline { offset, length } => {
                    let data = &self.bytes[offset as usize..][..length as usize];
                    out[at..at + length as usize].copy_from_slice(data);
                    at += length as usize;
                }
            }
        }
        if entry.pad > 0 {
            out[at..at + entry.pad as usize].fill(0);
        }
        Ok(at + entry.pad as usize)
    }
}

impl TxPacket {
    fn icrc(&self, path: &Path, ip_id: u16, body: &[u8]) -> [u8; ICRC_LEN] {
        match self.flush_quirk {
            true => icrc::compute_flush_quirk(&path.flow, ip_id, body),
            false => path.icrc.compute(ip_id, body),
        }
    }
}
