//! Completion queues of a device, which a program polls or arms.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ferroce_roce::{Arm, Cq as Queue, VerbsError, Wc};

use crate::completion_channel::CompletionChannel;
use crate::shard::Shard;
use crate::shards::Shards;

/// A completion queue.
///
/// A program polls it, or arms it and sleeps on its [`CompletionChannel`]. It polls once more after
/// arming: a completion that came before makes no event.
///
/// ```no_run
/// # fn example(device: &ferroce_device::Device) -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use ferroce_device::transport::Arm;
///
/// let channel = device.create_channel()?;
/// let cq = device.create_cq(64, Some(Arc::clone(&channel)))?;
/// loop {
///     while cq.poll(16, |wc| println!("{}: {}", wc.wr_id, wc.status)) > 0 {}
///     cq.arm(Arm::Any);
///     if cq.poll(16, |wc| println!("{}: {}", wc.wr_id, wc.status)) == 0 {
///         channel.take()?; // sleeps
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Cq {
    queue: Arc<Queue>,
    channel: Option<Arc<CompletionChannel>>,
    /// All shards of the link.
    shards: Arc<Shards>,
    /// Bit mask of the shards whose queue pairs complete here.
    used: AtomicU64,
    /// Value of this queue's records in the channel; the queue's id if not set.
    cookie: OnceLock<u64>,
}

impl Cq {
    pub(crate) fn new(
        id: u32,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
        shards: Arc<Shards>,
    ) -> Result<Cq, VerbsError> {
        let queue = Queue::new(id, entries)?;
        if let Some(channel) = &channel {
            queue.set_channel(Arc::as_ptr(channel).addr() as u64);
        }
        Ok(Cq {
            queue,
            channel,
            shards,
            used: AtomicU64::new(0),
            cookie: OnceLock::new(),
        })
    }

    /// Returns the queue's id in events.
    pub fn id(&self) -> u32 {
        self.queue.id()
    }

    /// Returns the transport's queue.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Sets the value of this queue's records in the channel. Only the first call before
    /// the queue is armed has an effect.
    pub fn set_cookie(&self, cookie: u64) {
        let _set_before = self.cookie.set(cookie);
    }

    /// Takes up to `max` completions and returns their number. If there is none, does turns
    /// of the shards first: while a program polls, the progress threads receive nothing.
    pub fn poll(&self, max: usize, mut take: impl FnMut(Wc)) -> usize {
        if max == 0 {
            return 0;
        }
        let mut taken = self.queue.poll(max, &mut take);
        let is_only = self.used.load(Ordering::Relaxed).is_power_of_two();
        if taken == 0 {
            self.used_shards().for_each(|shard| {
                shard.poll(is_only);
            });
            taken = self.queue.poll(max, take);
        }
        if taken > 0 {
            self.used_shards()
                .for_each(|shard| shard.note_completion(is_only));
        }
        taken
    }

    /// Returns the shards whose queue pairs complete here.
    #[inline]
    fn used_shards(&self) -> impl Iterator<Item = &Shard> {
        let mut used = self.used.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            let index = (used != 0).then_some(used.trailing_zeros())?;
            used &= used - 1;
            Some(&**self.shards.get(index as usize))
        })
    }

    /// Creates the descriptors that records in the channel need; see
    /// [`CompletionChannel::prepare`].
    ///
    /// # Errors
    /// As [`CompletionChannel::prepare`].
    pub fn prepare_events(&self) -> std::io::Result<()> {
        self.channel
            .as_ref()
            .map_or(Ok(()), |channel| channel.prepare())
    }

    /// Requests a record in the channel when the next completion arrives.
    pub fn arm(&self, what: Arm) {
        self.queue.arm(what);
        // A thread that will wait in the channel receives itself.
        let driven = self
            .channel
            .as_ref()
            .is_some_and(|channel| channel.is_driven());
        for shard in self.used_shards() {
            shard.flush_posts();
            if !driven {
                shard.stop_relying_on_polls();
            }
        }
    }

    /// Notes that a queue pair of this shard completes here.
    pub(crate) fn serve(&self, shard: usize) {
        self.used.fetch_or(1 << shard, Ordering::AcqRel);
        if let Some(channel) = &self.channel {
            channel.serve(shard);
        }
    }

    /// Puts a record into the channel.
    pub(crate) fn notify(&self) {
        if let Some(channel) = &self.channel {
            channel.put(self.cookie());
        }
    }

    /// Removes this queue's records that no thread has read from the channel.
    pub(crate) fn purge(&self) {
        if let Some(channel) = &self.channel {
            channel.purge(self.cookie());
        }
    }

    fn cookie(&self) -> u64 {
        *self.cookie.get_or_init(|| u64::from(self.queue.id()))
    }
}
