//! Counters in shared memory: one page for each slot.
//!
//! The program maps the page and counts there with plain stores. ferroced reads the same
//! page when a client asks for counters. So reading costs the program nothing, and the
//! counters outlive the program.
//!
//! The page starts with a header of [`PAGE_HEADER`] bytes, in native u64:
//!
//! | word | contents |
//! | --- | --- |
//! | 0 | a magic number |
//! | 1 | the version of the control protocol |
//! | 2 | a hash of the counters' names, in order |
//! | 3 | datagrams that the slot's sockets had dropped before the slot was assigned |
//!
//! The values follow, in the order of [`Counter::ALL`]. A page whose first three words are
//! not those of this build is refused.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_roce::Counter;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::PROTOCOL;

/// Number of counters.
pub const COUNTERS: usize = Counter::ALL.len();
/// Size of the memory of one slot's counters.
pub const PAGE_SIZE: usize = 4096;
/// Size of the header in front of the values: one cache line.
pub const PAGE_HEADER: usize = 64;

const _: () = assert!(PAGE_HEADER + COUNTERS * 8 <= PAGE_SIZE);

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
/// The first three words of the header.
const IDENTITY: [u64; 3] = [
    u64::from_be_bytes(*b"FERROCEC"),
    PROTOCOL as u64,
    hash_of_names(),
];
/// Words of the header.
const HEADER_WORDS: usize = PAGE_HEADER / 8;
/// Index of the word with the datagrams that were dropped before.
const DROPPED_BEFORE: usize = 3;

/// Reason why a page of counters is refused.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The descriptor is not a sealed page with the magic number.
    #[error("it is not a counter page of ferroced")]
    NotAPage,
    /// The page was made by a build with another version of the control protocol.
    #[error(
        "it has the layout of control protocol {theirs}, and this program that of {PROTOCOL}: \
         install both from one release, then restart ferroced and the program"
    )]
    Version {
        /// The version in the page.
        theirs: u64,
    },
    /// The page holds other counters, although the version is the same.
    #[error(
        "it holds other counters than this program, although both have control protocol \
         {PROTOCOL}: install both from one release, then restart ferroced and the program"
    )]
    Counters,
    /// The system cannot read the page.
    #[error("it cannot be read: {0}")]
    System(#[from] io::Error),
}

impl From<PageError> for io::Error {
    fn from(error: PageError) -> io::Error {
        match error {
            PageError::System(error) => error,
            error => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
        }
    }
}

/// Returns the 64-bit FNV-1a hash of all names, each with a newline.
const fn hash_of_names() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut counter = 0;
    while counter < COUNTERS {
        let name = Counter::ALL[counter].name().as_bytes();
        let mut at = 0;
        while at <= name.len() {
            let byte = if at < name.len() { name[at] } else { b'\n' };
            hash = (hash ^ byte as u64).wrapping_mul(0x0100_0000_01b3);
            at += 1;
        }
        counter += 1;
    }
    hash
}

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

    /// Adds one to a counter.
    pub fn count(&mut self, counter: Counter) {
        self.add_to(counter, 1);
    }

    /// Adds `n` to a counter.
    pub fn add_to(&mut self, counter: Counter, n: u64) {
        let value = &mut self.0[counter as usize];
        *value = value.wrapping_add(n);
    }

    /// Returns names and values.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|c| c.name()).zip(self.0)
    }

    /// Returns the values with these names. Unknown names are ignored.
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
    /// Creates a page whose counters are all zero. Its size is sealed.
    pub fn new() -> io::Result<CounterPage> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("ferroce-counters", flags)?;
        rustix::fs::ftruncate(&fd, PAGE_SIZE as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        let page = CounterPage(fd);
        page.clear(0)?;
        Ok(page)
    }

    /// Takes a page that another process has sent.
    ///
    /// # Errors
    /// If the descriptor is not a page, or a page of another version.
    pub fn from_fd(fd: OwnedFd) -> Result<CounterPage, PageError> {
        let sealed = rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SEALS));
        let size = rustix::fs::fstat(&fd).map_err(io::Error::from)?.st_size;
        if !sealed || size != PAGE_SIZE as i64 {
            return Err(PageError::NotAPage);
        }
        let page = CounterPage(fd);
        check(&page.words::<HEADER_WORDS>()?)?;
        Ok(page)
    }

    /// Returns another descriptor of the page.
    pub fn try_clone(&self) -> io::Result<CounterPage> {
        self.0.try_clone().map(CounterPage)
    }

    /// Returns the values. `dropped` is the number of datagrams that the kernel has dropped at
    /// the slot's sockets so far: those since [`CounterPage::clear`] are socket overflows. The
    /// program may count at the same time: the values need not all be of the same moment.
    ///
    /// # Errors
    /// If the page cannot be read, or the program has overwritten its version.
    pub fn read(&self, dropped: u32) -> Result<CounterValues, PageError> {
        let words: [u64; HEADER_WORDS + COUNTERS] = self.words()?;
        let (header, values) = words.split_at(HEADER_WORDS);
        check(header)?;
        let mut all = CounterValues::default();
        all.0.copy_from_slice(values);
        let before = header[DROPPED_BEFORE] as u32;
        let overflows = dropped.wrapping_sub(before);
        all.add_to(Counter::RxSocketOverflow, overflows.into());
        Ok(all)
    }

    /// Sets all counters to zero, for the next program. `dropped` is the number of
    /// datagrams that the kernel has dropped at the slot's sockets so far.
    pub fn clear(&self, dropped: u32) -> io::Result<()> {
        let mut bytes = [0; PAGE_SIZE];
        let words = IDENTITY.into_iter().chain([u64::from(dropped)]);
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_ne_bytes();
        }
        rustix::io::pwrite(&self.0, &bytes, 0)?;
        Ok(())
    }

    /// Reads the first `N` words.
    fn words<const N: usize>(&self) -> Result<[u64; N], PageError> {
        let mut words = [[0; 8]; N];
        let bytes = words.as_flattened_mut();
        let length = bytes.len();
        let read = rustix::io::pread(&self.0, bytes, 0).map_err(io::Error::from)?;
        if read != length {
            return Err(PageError::NotAPage);
        }
        Ok(words.map(u64::from_ne_bytes))
    }
}

/// Checks that a header is one of this build.
fn check(header: &[u64]) -> Result<(), PageError> {
    if header[0] != IDENTITY[0] {
        return Err(PageError::NotAPage);
    }
    if header[1] != IDENTITY[1] {
        let theirs = header[1];
        return Err(PageError::Version { theirs });
    }
    if header[2] != IDENTITY[2] {
        return Err(PageError::Counters);
    }
    Ok(())
}

impl AsFd for CounterPage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a word of a page.
    fn write(page: &CounterPage, at: u64, word: u64) {
        rustix::io::pwrite(page.as_fd(), &word.to_ne_bytes(), at).unwrap();
    }

    /// Returns the page as another process receives it.
    fn sent(page: &CounterPage) -> Result<CounterPage, PageError> {
        CounterPage::from_fd(page.as_fd().try_clone_to_owned().unwrap())
    }

    #[test]
    fn page_of_another_version_is_refused() {
        let page = CounterPage::new().unwrap();
        write(&page, 8, u64::from(PROTOCOL) + 1);
        let error = sent(&page).unwrap_err().to_string();
        let theirs = format!("control protocol {}, and this program", PROTOCOL + 1);
        assert!(error.contains(&theirs), "{error}");
        assert!(error.contains("from one release"), "{error}");
        assert!(page.read(0).is_err(), "nor is it read");
        page.clear(0).unwrap();
        assert!(sent(&page).is_ok());
        write(&page, 16, 1);
        assert!(matches!(sent(&page), Err(PageError::Counters)));
        write(&page, 0, 1);
        assert!(matches!(sent(&page), Err(PageError::NotAPage)));
    }

    #[test]
    fn page_of_a_build_without_versions_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("old", flags).unwrap();
        rustix::fs::ftruncate(&fd, PAGE_SIZE as u64).unwrap();
        let unsealed = CounterPage::from_fd(fd.try_clone().unwrap());
        assert!(matches!(unsealed, Err(PageError::NotAPage)));
        rustix::fs::fcntl_add_seals(&fd, SEALS).unwrap();
        let old = CounterPage::from_fd(fd);
        assert!(matches!(old, Err(PageError::NotAPage)));
        let file = std::fs::File::open("/proc/version").unwrap();
        let file = CounterPage::from_fd(file.into());
        assert!(matches!(file, Err(PageError::NotAPage)));
    }

    #[test]
    fn drops_before_the_assignment_are_no_overflows() {
        let page = CounterPage::new().unwrap();
        let overflows = |dropped| {
            let values = sent(&page).unwrap().read(dropped).unwrap();
            values.0[Counter::RxSocketOverflow as usize]
        };
        assert_eq!(overflows(7), 7);
        // The kernel's count wraps around.
        page.clear(u32::MAX).unwrap();
        assert_eq!((overflows(u32::MAX), overflows(2)), (0, 3));
    }

    #[test]
    fn ferroced_reads_what_the_program_counts() {
        let page = CounterPage::new().unwrap();
        assert_eq!(page.read(0).unwrap(), CounterValues::default());
        let program = page.as_fd().try_clone_to_owned().unwrap();
        let at = PAGE_HEADER as u64 + 8 * Counter::RcvdPkts as u64;
        rustix::io::pwrite(&program, &7u64.to_ne_bytes(), at).unwrap();
        let values = page.read(0).unwrap();
        assert_eq!(values.0[Counter::RcvdPkts as usize], 7);
        assert_eq!(values.0.iter().sum::<u64>(), 7);
        page.clear(0).unwrap();
        assert_eq!(page.read(0).unwrap(), CounterValues::default());
    }

    #[test]
    fn page_cannot_shrink() {
        let page = CounterPage::new().unwrap();
        assert!(rustix::fs::ftruncate(page.as_fd(), 0).is_err());
    }

    #[test]
    fn values_are_restored_by_name() {
        let mut values = CounterValues::default();
        values.count(Counter::LinkDowned);
        let named: Vec<_> = values.named().collect();
        assert!(named.contains(&("link_downed", 1)));
        let unknown = [("of_a_later_release", 5)];
        let back = CounterValues::from_named(named.into_iter().chain(unknown));
        assert_eq!(back, values);
    }
}
