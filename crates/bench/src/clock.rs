//! The one place that looks at a clock.

use std::time::Instant;

use ferroce_transport::Time;

/// Real time, counted from its creation.
#[derive(Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that shows zero now.
    pub fn start() -> Clock {
        Clock(instant())
    }

    /// The time on it.
    pub fn now(&self) -> Time {
        Time::ZERO + (instant() - self.0)
    }
}

/// What a side spends its time on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(usize)]
#[allow(missing_docs)] // the names say it
pub enum Stage {
    Post,
    PollTransmit,
    Assemble,
    FinishTransmit,
    Receive,
    PollCq,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; 6] = [
        Stage::Post,
        Stage::PollTransmit,
        Stage::Assemble,
        Stage::FinishTransmit,
        Stage::Receive,
        Stage::PollCq,
    ];

    /// What the engine calls it.
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

/// A clock with laps.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    clock: Clock,
    lap: Time,
    stage: Time,
    /// Stages are timed too, which costs a nanosecond or two a message.
    pub(crate) detailed: bool,
    /// Laps go on: reading the clock would cost as much as what it measures.
    pub(crate) paused: bool,
    /// Whose stages they are: 0 for the sender, 1 for the receiver.
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

    /// Ends a lap, and returns its nanoseconds.
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

    /// The time of the last lap: what the engines take as now.
    pub(crate) fn now(&self) -> Time {
        self.lap
    }

    /// Ends a stage of the lap.
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
