//! Memory of the program: registered regions, and the contents of send buffers.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ferroce_device::transport::{MemRef, Memory, QpState, Sge};
use ferroce_device::{Device, ProcessMemory, Qp, observed};
use ferroce_strict::{Buffers, Check, Finding, QpId, Range, Sent};

use super::{Settings, ledger};

/// Bytes at each end of a buffer that are compared.
const COMPARED: u64 = 64 << 10;

/// A registered region of host memory.
#[derive(Copy, Clone)]
struct Place {
    start: u64,
    iova: u64,
    length: u64,
}

/// Regions by device and key.
static REGIONS: Mutex<BTreeMap<(usize, u32), Place>> = Mutex::new(BTreeMap::new());
/// Live queue pairs, to ask for their state.
static QPS: Mutex<BTreeMap<QpId, Weak<Qp>>> = Mutex::new(BTreeMap::new());

/// Returns the number of a device in the ledger.
pub(crate) fn device_id(device: &Arc<Device>) -> usize {
    Arc::as_ptr(device).addr()
}

/// Notes a new region of host memory.
pub(crate) fn registered(device: &Arc<Device>, lkey: u32, start: u64, iova: u64, length: u64) {
    let place = Place {
        start,
        iova,
        length,
    };
    regions().insert((device_id(device), lkey), place);
}

/// Checks that no posted work uses a region that is about to be deregistered.
pub(crate) fn check_deregister(
    settings: &Settings,
    device: &Arc<Device>,
    lkey: u32,
) -> Result<(), c_int> {
    if !settings.is_strict() || settings.is_inherited() {
        return Ok(());
    }
    let id = device_id(device);
    let mut ledger = ledger();
    // rdma_disconnect and failures change the state without a call of ibv_modify_qp.
    for (qp, state) in states() {
        if matches!(state, QpState::Err | QpState::Reset) {
            ledger.fail_qp(qp);
        }
    }
    let finding = ledger.check_deregister(id, lkey);
    drop(ledger);
    settings.report("ibv_dereg_mr", libc::EBUSY, finding)
}

/// Forgets a region.
pub(crate) fn deregistered(device: &Arc<Device>, lkey: u32) {
    regions().remove(&(device_id(device), lkey));
}

/// Notes a new queue pair.
pub(crate) fn add_qp(id: QpId, qp: &Arc<Qp>) {
    let mut qps = QPS.lock().unwrap_or_else(PoisonError::into_inner);
    qps.insert(id, Arc::downgrade(qp));
}

/// Forgets a queue pair.
pub(crate) fn remove_qp(id: QpId) {
    let mut qps = QPS.lock().unwrap_or_else(PoisonError::into_inner);
    qps.remove(&id);
}

fn states() -> Vec<(QpId, QpState)> {
    let qps = QPS.lock().unwrap_or_else(PoisonError::into_inner);
    let state = |(id, qp): (&QpId, &Weak<Qp>)| {
        let query = qp.upgrade()?.query().ok()?;
        Some((*id, query.attr.state))
    };
    qps.iter().filter_map(state).collect()
}

/// Returns the contents of the buffers of a send; none if one is not plain memory of this
/// process.
pub(super) fn buffers(device: usize, sges: &[Sge]) -> Option<Buffers> {
    // Before the memory is read: later writes of the adapter count.
    let time = observed::now();
    let mut ranges = Vec::with_capacity(sges.len());
    let regions = regions();
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        let place = regions.get(&(device, sge.lkey))?;
        let offset = sge.addr.checked_sub(place.iova)?;
        let length = u64::from(sge.length);
        if offset.checked_add(length)? > place.length {
            return None;
        }
        let start = place.start + offset;
        ranges.push(Range {
            start,
            end: start + length,
        });
    }
    drop(regions);
    let checksum = checksum(&ranges)?;
    Some(Buffers {
        ranges,
        checksum,
        time,
    })
}

/// Compares the buffers of a send with their contents when it was posted.
pub(super) fn check_unchanged(qpn: u32, sent: &Sent) -> Option<Finding> {
    let before = sent.buffers.as_ref()?;
    let now = checksum(&before.ranges)?;
    if now == before.checksum || observed::written_since(before.time, &before.ranges) {
        return None;
    }
    let bytes: u64 = before
        .ranges
        .iter()
        .map(|range| range.end - range.start)
        .sum();
    let at = before.ranges.first().map_or(0, |range| range.start);
    let what = format!(
        "queue pair {qpn:#x}, wr_id {:#x}: the {bytes} bytes at {at:#x} changed between \
         ibv_post_send and the completion",
        sent.wr_id
    );
    Some(Finding::warning(Check::Buffer, what))
}

/// Returns a checksum of both ends of each range; none if memory cannot be read.
fn checksum(ranges: &[Range]) -> Option<u32> {
    // SAFETY: this function only reads, from memory that the program has registered and passed
    // to a work request. Memory that is no longer mapped is reported as a fault.
    let memory = unsafe { ProcessMemory::current() };
    let mut sum = Fnv::default();
    let mut piece = [0; 4096];
    let mut add = |start: u64, end: u64| {
        let mut at = start;
        while at < end {
            let length = (end - at).min(piece.len() as u64) as usize;
            memory.read(MemRef::host(at), &mut piece[..length]).ok()?;
            sum.add(&piece[..length]);
            at += length as u64;
        }
        Some(())
    };
    for Range { start, end } in ranges.iter().copied() {
        match end - start > 2 * COMPARED {
            false => add(start, end)?,
            true => {
                add(start, start + COMPARED)?;
                add(end - COMPARED, end)?;
            }
        }
    }
    Some(sum.value())
}

/// A hash of eight bytes at a time, in the manner of Fowler, Noll and Vo.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        for word in words.chain(rest.iter().map(|byte| u64::from(*byte))) {
            self.0 = (self.0 ^ word).wrapping_mul(0x100_0000_01b3);
            self.0 ^= self.0 >> 29;
        }
    }

    fn value(&self) -> u32 {
        (self.0 ^ self.0 >> 32) as u32
    }
}

fn regions() -> std::sync::MutexGuard<'static, BTreeMap<(usize, u32), Place>> {
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_notices_each_byte() {
        let mut bytes = vec![7u8; 5003];
        let range = |bytes: &[u8]| {
            let start = bytes.as_ptr().expose_provenance() as u64;
            [Range {
                start,
                end: start + bytes.len() as u64,
            }]
        };
        let before = checksum(&range(&bytes)).unwrap();
        for index in [0, 1, 4095, 4096, 5000, 5002] {
            bytes[index] ^= 1;
            assert_ne!(checksum(&range(&bytes)), Some(before), "byte {index}");
            bytes[index] ^= 1;
        }
        assert_eq!(checksum(&range(&bytes)), Some(before));
    }

    #[test]
    fn memory_that_is_not_mapped_has_no_checksum() {
        let nowhere = [Range { start: 8, end: 16 }];
        assert_eq!(checksum(&nowhere), None);
    }
}
