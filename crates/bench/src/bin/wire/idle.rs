//! Measures the activity of an idle device.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::requests::Figure;

/// Sleeps and processor time of the device's threads.
#[derive(Debug, Default, Clone, Copy)]
struct Activity {
    threads: u32,
    sleeps: u64,
    cpu_ns: u64,
}

/// Counts wakeups and processor time of the device's threads during `ms` milliseconds.
pub(crate) fn watch(ms: u64) -> Result<Figure> {
    // Let earlier work finish first.
    pause(200);
    let before = activity()?;
    ensure!(before.threads > 0, "no device is open");
    pause(ms);
    let after = activity()?;
    Ok(Figure::Idle {
        wakeups: after.sleeps - before.sleeps,
        cpu_ns: after.cpu_ns - before.cpu_ns,
    })
}

fn activity() -> Result<Activity> {
    let mut sum = Activity::default();
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        let status = fs::read_to_string(task.join("status"))?;
        let field = |name: &str| {
            let mut lines = status.lines();
            lines.find_map(|line| line.strip_prefix(name).map(str::trim))
        };
        if !field("Name:").is_some_and(|name| name.starts_with("ferroce-")) {
            continue;
        }
        let sleeps = field("voluntary_ctxt_switches:").context("no such field")?;
        let schedstat = fs::read_to_string(task.join("schedstat"))?;
        let cpu_ns = schedstat.split(' ').next().context("empty")?;
        sum.threads += 1;
        sum.sleeps += sleeps.parse::<u64>()?;
        sum.cpu_ns += cpu_ns.parse::<u64>()?;
    }
    Ok(sum)
}

#[allow(clippy::disallowed_methods)] // the main thread must stay idle, too
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
