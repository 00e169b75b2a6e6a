//! The machine and the build of a measurement.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The circumstances of a measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Time in UTC, for example `2026-11-16 13:05:00`.
    pub time: String,
    /// The commit that was built.
    pub commit: String,
    /// Number of processors that the benchmark may use.
    pub cores: u32,
    /// Model of the processor.
    pub processor: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Network and user, in a sentence.
    pub place: String,
}

impl Machine {
    /// Describes this machine.
    pub fn here(commit: &str, cores: u32, place: String) -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        let model = model.map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':']));
        let uname = rustix::system::uname();
        #[allow(clippy::disallowed_methods)] // the history has the time of each run
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Machine {
            time: utc(now.unwrap_or(Duration::ZERO).as_secs()),
            commit: commit.to_owned(),
            cores,
            processor: model.to_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            place,
        }
    }
}

/// Formats seconds since 1970 as date and time.
fn utc(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| {
        (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!(
        "{year}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02}",
        days + 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_leap_years_are_right() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(utc(1_794_834_300), "2026-11-16 13:05:00");
    }
}
