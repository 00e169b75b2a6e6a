//! The assistant of a progress thread: a thread that assembles packets while that one sends.
//!
//! A progress thread that does all turns sends, and the program's polls assemble the next packets
//! meanwhile. The responder of READs has a program that makes no calls. If processors are free, the
//! assistant does what the polls would do. It sleeps otherwise, and does not exist before the
//! first time.

use std::sync::Arc;
use std::thread::JoinHandle;

use ferroce_control::start_thread;

use crate::shard::Shard;

/// The assistant of one progress thread.
#[derive(Debug)]
pub(crate) struct Assistant {
    shard: Arc<Shard>,
    /// None before the first time.
    thread: Option<JoinHandle<()>>,
}

impl Assistant {
    pub(crate) fn new(shard: Arc<Shard>) -> Assistant {
        Assistant {
            shard,
            thread: None,
        }
    }

    /// Lets the assistant work, until [`Assistant::rest`].
    pub(crate) fn work(&mut self) {
        self.shard.set_assisted(true);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
            return;
        }
        let shard = Arc::clone(&self.shard);
        match start_thread(format!("ferroce-{}+", shard.slot()), move || run(&shard)) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                // The progress thread does all of the work, as before.
                tracing::debug!("no thread assembles packets: {error}");
                self.shard.set_assisted(false);
            }
        }
    }

    /// Lets the assistant sleep.
    pub(crate) fn rest(&self) {
        self.shard.set_assisted(false);
    }
}

impl Drop for Assistant {
    /// Ends the thread. The shard has stopped, or a panic ends the progress thread.
    fn drop(&mut self) {
        self.rest();
        if let Some(thread) = self.thread.take()
            && self.shard.is_stopped()
        {
            thread.thread().unpark();
            let _panicked = thread.join();
        }
    }
}

#[allow(clippy::disallowed_methods)] // this is the runtime: threads sleep here
fn run(shard: &Shard) {
    while !shard.is_stopped() {
        match shard.is_assisted() {
            true => shard.assist(),
            false => std::thread::park(),
        }
    }
}
