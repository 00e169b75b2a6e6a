//! Counters in shared memory: one page for each slot.
//!
//! The program maps the page and counts there, with plain stores: it has to count
//! somewhere anyway. ferroced reads the same page whenever it is asked, so reading
//! costs the program nothing, and the numbers are there when the program is not.
//!
//! The layout is an array of native u64 in the order of [`Counter::ALL`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_transport::Counter;
use rustix::fs::{MemfdFlags, SealFlags};

/// How many counters there are.
pub const COUNTERS: usize = Counter::ALL.len();
/// The size of the memory of one slot's counters.
pub const PAGE_SIZE: usize = 4096;

const _: () = assert!(COUNTERS * 8 <= PAGE_SIZE);

/// Values of all counters, in the order of [`Counter::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterValues(pub [u64; COUNTERS]);

impl Default for CounterValues {
    fn default() -> CounterValues {
        CounterValues([0; COUNTERS])
    }
}

impl CounterValues {
    /// Adds another set of values to this one.
    pub fn add(&mut self, other: &CounterValues) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.wrapping_add(theirs);
        }
    }

    /// Counts one more.
    pub fn count(&mut self, counter: Counter) {
        self.add_to(counter, 1);
    }

    /// Counts `n` more.
    pub fn add_to(&mut self, counter: Counter, n: u64) {
        let value = &mut self.0[counter as usize];
        *value = value.wrapping_add(n);
    }

    /// Names and values.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|c| c.name()).zip(self.0)
    }

    /// The values with these names; others are left out.
    pub fn from_named<'a>(named: impl IntoIterator<Item = (&'a str, u64)>) -> CounterValues {
        let mut values = CounterValues::default();
        for (name, value) in named {
            if let Some(counter) = Counter::ALL.iter().find(|c| c.name() == name) {
                values.0[*counter as usize] = value;
            }
        }
        values
    }
}

/// The shared memory of one slot's counters.
#[derive(Debug)]
pub struct CounterPage(OwnedFd);

impl CounterPage {
    /// A new page, all zero, whose size nobody can change any more.
    pub fn new() -> io::Result<CounterPage> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("ferroce-counters", flags)?;
        rustix::fs::ftruncate(&fd, PAGE_SIZE as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals)?;
        Ok(CounterPage(fd))
    }

    /// The values now. A program may be counting at the same time: each value is
    /// some recent one, and they need not belong to the same moment.
    pub fn read(&self) -> io::Result<CounterValues> {
        let mut bytes = [0; COUNTERS * 8];
        let read = rustix::io::pread(&self.0, &mut bytes[..], 0)?;
        if read != bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut values = CounterValues::default();
        for (value, bytes) in values.0.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *value = u64::from_ne_bytes(*bytes);
        }
        Ok(values)
    }

    /// Begins again at zero, for the next program.
    pub fn clear(&self) -> io::Result<()> {
        rustix::io::pwrite(&self.0, &[0; PAGE_SIZE], 0)?;
        Ok(())
    }
}

impl From<OwnedFd> for CounterPage {
    fn from(fd: OwnedFd) -> CounterPage {
        CounterPage(fd)
    }
}

impl AsFd for CounterPage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_holder_writes_the_other_reads() {
        let page = CounterPage::new().unwrap();
        assert_eq!(page.read().unwrap(), CounterValues::default());
        let program = page.as_fd().try_clone_to_owned().unwrap();
        let at = 8 * Counter::RcvdPkts as u64;
        rustix::io::pwrite(&program, &7u64.to_ne_bytes(), at).unwrap();
        let values = page.read().unwrap();
        assert_eq!(values.0[Counter::RcvdPkts as usize], 7);
        assert_eq!(values.0.iter().sum::<u64>(), 7);
        page.clear().unwrap();
        assert_eq!(page.read().unwrap(), CounterValues::default());
    }

    #[test]
    fn nobody_can_shrink_it() {
        let page = CounterPage::new().unwrap();
        assert!(rustix::fs::ftruncate(page.as_fd(), 0).is_err());
    }

    #[test]
    fn values_go_by_name() {
        let mut values = CounterValues::default();
        values.count(Counter::LinkDowned);
        let named: Vec<_> = values.named().collect();
        assert!(named.contains(&("link_downed", 1)));
        let unknown = [("of_tomorrow", 5)];
        let back = CounterValues::from_named(named.into_iter().chain(unknown));
        assert_eq!(back, values);
    }
}
