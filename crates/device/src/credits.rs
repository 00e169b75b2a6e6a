//! The credit page of ferroced, mapped into this process.

use std::os::fd::AsFd;
use std::sync::Arc;

use ferroce_control::{CREDIT_ENTRY_SIZE, CREDIT_PAGE_SIZE, CreditPage as SharedPage};
use ferroce_shard::{CreditEntry, CreditPage};

use crate::mapping::{Mapping, SharedNumbers};

const _: () = assert!(size_of::<CreditEntry>() == CREDIT_ENTRY_SIZE);

// SAFETY: the page is an array of atomics and padding that no code reads, and any numbers
// are valid.
unsafe impl SharedNumbers for CreditPage {}

/// The credit page, mapped until the last of its users is dropped.
#[derive(Clone, Debug)]
pub(crate) struct MappedCredits(Arc<Mapping<CreditPage>>);

impl MappedCredits {
    pub(crate) fn new(page: &SharedPage) -> std::io::Result<MappedCredits> {
        let mapping = Mapping::new(page.as_fd(), CREDIT_PAGE_SIZE)?;
        Ok(MappedCredits(Arc::new(mapping)))
    }
}

impl AsRef<CreditPage> for MappedCredits {
    fn as_ref(&self) -> &CreditPage {
        &self.0
    }
}
