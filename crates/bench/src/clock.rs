//! The clock of the engine benchmark, and its stopwatch.

use core::cell::Cell;
use std::time::{Duration, Instant};

use ferroce_roce::Time;

/// Advance of a clock of steps at each reading.
const STEP: Duration = Duration::from_micros(1);

/// A clock that counts time from its creation.
#[derive(Debug)]
pub enum Clock {
    /// Real time since this instant.
    Real(Instant),
    /// A number of readings, each of which takes `STEP`.
    Steps(Cell<u32>),
}

impl Clock {
    /// Starts a clock of real time at zero.
    pub fn start() -> Clock {
        Clock::Real(instant())
    }

    /// Returns the time since the start.
    pub fn now(&self) -> Time {
        Time::ZERO
            + match self {
                Clock::Real(start) => instant() - *start,
                Clock::Steps(readings) => {
                    readings.set(readings.get() + 1);
                    STEP * readings.get()
                }
            }
    }
}

/// A step of the work of one side.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(usize)]
#[allow(missing_docs)] // the names are self-explanatory
pub enum Stage {
    Post,
    PollTransmit,
    Assemble,
    FinishTransmit,
    Receive,
    PollCq,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Stage; 6] = [
        Stage::Post,
        Stage::PollTransmit,
        Stage::Assemble,
        Stage::FinishTransmit,
        Stage::Receive,
        Stage::PollCq,
    ];

    /// Returns the name of the stage, as in the engine's interface.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Post => "post",
            Stage::PollTransmit => "poll_transmit",
            Stage::Assemble => "assemble",
            Stage::FinishTransmit => "finish_transmit",
            Stage::Receive => "receive",
            Stage::PollCq => "poll the CQ",
        }
    }
}

/// Nanoseconds by side (sender, receiver) and stage.
pub(crate) type Stages = [[u64; Stage::ALL.len()]; 2];

/// A stopwatch for laps, and for stages within a lap.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    clock: Clock,
    lap: Time,
    stage: Time,
    /// Time stages, too. This costs one or two nanoseconds per message.
    pub(crate) detailed: bool,
    /// Do not read the clock at the end of a lap, because that would cost as much as a
    /// short lap itself.
    pub(crate) paused: bool,
    /// The side whose stages are timed: 0 for the sender, 1 for the receiver.
    pub(crate) side: usize,
    pub(crate) stages: Stages,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch {
            clock: Clock::start(),
            lap: Time::ZERO,
            stage: Time::ZERO,
            detailed: false,
            paused: false,
            side: 0,
            stages: Stages::default(),
        }
    }

    /// Counts steps instead of real time from now on.
    pub(crate) fn use_steps(&mut self) {
        self.clock = Clock::Steps(Cell::new(0));
        self.lap = Time::ZERO;
        self.stage = Time::ZERO;
    }

    /// Ends a lap and returns its nanoseconds.
    pub(crate) fn lap(&mut self) -> u64 {
        if self.paused {
            return 0;
        }
        let now = self.clock.now();
        let ns = now.nanos_since(self.lap);
        self.lap = now;
        self.stage = now;
        ns
    }

    /// Returns the time of the last lap, which the engines use as the current time.
    pub(crate) fn now(&self) -> Time {
        self.lap
    }

    /// Ends a stage of the current lap.
    #[inline]
    pub(crate) fn stage(&mut self, stage: Stage) {
        if self.detailed {
            let now = self.clock.now();
            self.stages[self.side][stage as usize] += now.nanos_since(self.stage);
            self.stage = now;
        }
    }
}

#[allow(clippy::disallowed_methods)] // a benchmark measures time
fn instant() -> Instant {
    Instant::now()
}
