//! Threads of the library in a program that does not know them.

use std::io;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};

use crate::signals::block_all;

/// Starts a thread that handles no signals of the program, and waits until it runs.
///
/// **Why wait**: a thread that starts calls `mmap` and `munmap` for its memory. libfabric overwrites the
/// first instructions of these functions while the program opens its endpoints, and a thread that
/// runs through them at that moment crashes.
///
/// # Errors
/// If the process has too many threads.
pub fn start_thread(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let _blocked = block_all();
    let (runs, is_running) = sync_channel(1);
    #[allow(clippy::disallowed_methods)] // this is where threads start
    let thread = Builder::new().name(name).spawn(move || {
        // The caller waits, so this cannot fail.
        let _sent = runs.send(());
        drop(runs);
        work();
    })?;
    // An error means that the thread has ended.
    let _ended = is_running.recv();
    Ok(thread)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::channel;

    use super::*;

    /// A thread has its name once it runs.
    #[test]
    fn thread_runs_when_the_call_returns() {
        let (end, ends) = channel::<()>();
        let thread = start_thread("started-thread".into(), move || {
            let _ended = ends.recv();
        })
        .expect("started");
        let tasks = fs::read_dir("/proc/self/task").expect("readable");
        let names =
            tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
        assert!(
            names
                .into_iter()
                .any(|name| name.trim() == "started-thread")
        );
        drop(end);
        thread.join().expect("no panic");
    }
}
