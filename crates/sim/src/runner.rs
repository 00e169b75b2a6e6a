//! Runs seeds, on one thread or several, and reports violations.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::bug::Bug;
use crate::coverage::Coverage;
use crate::scenario::Family;
use crate::trace::Trace;
use crate::world::World;

/// Number of log lines in a report.
const TAIL: usize = 40;

/// Choices for a run that its seed does not make.
#[derive(Copy, Clone, Default, Debug)]
pub struct Options {
    /// The bug that is enabled in all hosts.
    pub bug: Option<Bug>,
    /// The family; none if the seed draws it.
    pub family: Option<Family>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// The theme of its scenario.
    pub family: Family,
    /// Number of simulated events.
    pub steps: u64,
    /// Number of packets sent.
    pub packets: u64,
    /// Opcodes, statuses, drops and events that occurred.
    pub coverage: Coverage,
    /// Description of the violation, if there was one.
    pub violation: Option<String>,
}

impl Outcome {
    /// Returns a human-readable report of the violation, with the last lines of the
    /// log and the command that replays the run.
    pub fn report(&self, options: Options) -> String {
        let Some(violation) = &self.violation else {
            return format!("seed {}: no violation", self.seed);
        };
        let (seed, family) = (self.seed, self.family);
        let mut world = World::new(seed, options, Trace::tail(TAIL));
        let _again = catch_panic(|| world.run());
        let mut text = format!("seed {seed} ({family:?}): {violation}\n\nthe last events:\n");
        if let Trace::Tail { lines, .. } = &world.trace {
            for line in lines {
                text += &format!("  {line}\n");
            }
        }
        text + &format!("\nreplay with:\n  {}\n", replay_command(seed, options))
    }
}

/// Returns the command that replays a run with its log.
pub fn replay_command(seed: u64, options: Options) -> String {
    let family = options.family.map(|family| format!(" --family {family:?}"));
    let bug = options.bug.map(|bug| format!(" --bug {bug:?}"));
    format!(
        "cargo xtask sim --seed {seed}{}{} --trace",
        family.unwrap_or_default(),
        bug.unwrap_or_default()
    )
}

/// Runs one seed.
pub fn run_seed(seed: u64, options: Options) -> Outcome {
    run_world(World::new(seed, options, Trace::Off))
}

/// Runs one seed and prints its log.
pub fn run_seed_with_trace(seed: u64, options: Options) -> Outcome {
    run_world(World::new(seed, options, Trace::Print))
}

fn run_world(mut world: World) -> Outcome {
    let result = catch_panic(|| world.run());
    Outcome {
        seed: world.seed,
        family: world.scenario.family,
        steps: world.steps,
        packets: world.packets.get(),
        coverage: world.coverage,
        violation: result.err(),
    }
}

/// Runs seeds from `start` on, on `threads` threads, until `go_on` returns false
/// for an outcome. Outcomes come in no particular order.
pub fn run_seeds(
    start: u64,
    threads: usize,
    options: Options,
    go_on: impl Fn(Outcome) -> bool + Sync,
) {
    let next = AtomicU64::new(start);
    let stop = AtomicU64::new(0);
    // The simulated engines have no threads; only this runner starts some.
    #[allow(clippy::disallowed_methods)]
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !go_on(run_seed(seed, options)) {
                        stop.store(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a closure and turns a panic into a violation.
fn catch_panic(f: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !WATCHED.get() {
                usual(info);
                return;
            }
            let place = info
                .location()
                .map(|l| format!(" at {}:{}", l.file(), l.line()));
            PANIC_PLACE.set(place);
        }));
    });
    WATCHED.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    WATCHED.set(false);
    result.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let place = PANIC_PLACE.take().unwrap_or_default();
        Err(format!(
            "panic{place}: {}",
            text.unwrap_or("without a message")
        ))
    })
}

thread_local! {
    static PANIC_PLACE: Cell<Option<String>> = const { Cell::new(None) };
}
