//! `ferroce run --sweep`: runs a test again and again, each time with one fault at another
//! point, and reports the points that it does not survive.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ferroce_faults::{VERBS, errno_name, with_ending};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::faults::RunCounts;

/// Options of a sweep.
#[derive(Debug, Args)]
pub(super) struct SweepOptions {
    /// Run the test with one fault at each interesting point, and report which it does not
    /// survive (see SWEEP below)
    #[arg(long, conflicts_with_all = ["faults", "scenario", "chaos"])]
    pub(super) sweep: bool,

    /// With --sweep: seconds after which a run counts as hanging
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "sweep")]
    sweep_limit: u64,

    /// With --sweep: most packets to lose, each in a run of its own
    #[arg(long, value_name = "N", default_value_t = 32, requires = "sweep")]
    sweep_packets: u64,

    /// With --sweep: most calls of each verb to fail, each in a run of its own
    #[arg(long, value_name = "N", default_value_t = 16, requires = "sweep")]
    sweep_calls: u64,

    /// With --sweep: only points whose fault contains this text
    #[arg(long, value_name = "TEXT", requires = "sweep")]
    sweep_only: Option<String>,
}

/// A number that no packet or call reaches: such a fault only counts.
const NEVER: u64 = u64::MAX;

/// One run of the test.
struct Run {
    /// None if the run was ended at the limit.
    status: Option<ExitStatus>,
    output: Vec<u8>,
    took: Duration,
}

/// The result of a point.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Verdict {
    /// The test passed.
    Survived,
    /// The test failed, as it may when a verb fails.
    Noticed,
    /// A finding.
    Hangs,
    Crashes(i32),
    /// A lost packet made the test fail: retransmission is the transport's task.
    Fails,
    /// The test passed with another output.
    Corrupts,
    /// The test failed without the fault, or only in one of two runs.
    Unsteady,
}

/// A fault at one point.
struct Point {
    fault: String,
    /// True if the test may fail, and must not hang or crash.
    may_fail: bool,
    /// True if ferroced applies the fault: the counts of the run do not show it.
    by_ferroced: bool,
}

impl SweepOptions {
    /// Sweeps over a test. `command` creates the command of a run.
    pub(super) fn run(
        &self,
        test: &[OsString],
        mut command: impl FnMut() -> Result<Command>,
    ) -> Result<ExitCode> {
        let test = quoted(test);
        let (points, output) = self.baseline(&mut command)?;
        let mut findings = Vec::new();
        let mut unsteady = Vec::new();
        eprintln!("sweep: {} points", points.len());
        for (index, point) in points.iter().enumerate() {
            let (mut verdict, took) = self.try_point(&mut command, point, output.as_deref())?;
            if verdict.is_finding() {
                // The test itself may fail now and then.
                let (again, _) = self.try_point(&mut command, point, output.as_deref())?;
                verdict = if again == verdict {
                    verdict
                } else {
                    Verdict::Unsteady
                };
            }
            let (number, all, took) = (index + 1, points.len(), took.as_secs_f64());
            eprintln!(
                "[{number}/{all}] {}: {} ({took:.1} s)",
                point.fault,
                verdict.text()
            );
            match verdict {
                Verdict::Unsteady => unsteady.push(point),
                verdict if verdict.is_finding() => findings.push((point, verdict)),
                _ => {}
            }
        }
        println!(
            "{} points, {} findings, {} undecided",
            points.len(),
            findings.len(),
            unsteady.len()
        );
        for (point, verdict) in &findings {
            println!("{}: {}", verdict.text(), point.fault);
            println!("    ferroce run --faults '{}' -- {test}", point.fault);
        }
        if !unsteady.is_empty() {
            println!(
                "Undecided: the test failed there without the fault, or in one of two runs. The order \
                 of calls of its programs may differ from run to run."
            );
        }
        for point in &unsteady {
            println!("    ferroce run --faults '{}' -- {test}", point.fault);
        }
        Ok(match findings.is_empty() && unsteady.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    /// Runs the test with the fault of a point. A finding counts only if the fault has happened.
    fn try_point(
        &self,
        command: &mut impl FnMut() -> Result<Command>,
        point: &Point,
        expected: Option<&[u8]>,
    ) -> Result<(Verdict, Duration)> {
        let counts = RunCounts::new()?;
        let run = self.attempt(command, &counts, &point.fault)?;
        let verdict = judge(&run, point, expected);
        let is_unrelated = !point.by_ferroced && counts.read(0)?.1 == 0;
        let verdict = match verdict.is_finding() && is_unrelated {
            true => Verdict::Unsteady,
            false => verdict,
        };
        Ok((verdict, run.took))
    }

    /// Runs the test twice without faults. Returns the points, and the output if both runs have
    /// the same.
    fn baseline(
        &self,
        command: &mut impl FnMut() -> Result<Command>,
    ) -> Result<(Vec<Point>, Option<Vec<u8>>)> {
        let counts = RunCounts::new()?;
        let fails = VERBS
            .iter()
            .map(|(verb, _)| format!("fail {verb} {NEVER} EIO"));
        let counting: Vec<String> = fails
            .chain([format!("drop the {NEVER}th packet")])
            .collect();
        let first = self.attempt(command, &counts, &counting.join("; "))?;
        check(&first)?;
        let second = self.attempt(command, &RunCounts::new()?, "seed 0")?;
        check(&second)?;
        let mut points = Vec::new();
        for (index, (verb, errno)) in VERBS.iter().enumerate() {
            let (calls, _) = counts.read(index)?;
            let errno = errno_name(*errno).context("an errno without a name")?;
            for call in 1..=calls.min(self.sweep_calls) {
                points.push(Point {
                    fault: format!("fail {verb} {call} {errno}"),
                    may_fail: true,
                    by_ferroced: false,
                });
            }
        }
        let (packets, _) = counts.read(VERBS.len())?;
        for packet in 1..=packets.min(self.sweep_packets) {
            points.push(Point {
                fault: format!("drop the {} packet", with_ending(packet)),
                may_fail: false,
                by_ferroced: false,
            });
        }
        let mut uses_cm = false;
        for (index, (verb, _)) in VERBS.iter().enumerate() {
            let connects = matches!(*verb, "rdma_create_id" | "rdma_create_ep" | "rsocket");
            uses_cm |= connects && counts.read(index)?.0 > 0;
        }
        if uses_cm {
            let messages = ["REQ", "REP", "RTU", "DREQ", "DREP"];
            let lost = messages.map(|message| (format!("drop the 1st {message}"), false));
            let refused = [("reject the 1st REQ".to_owned(), true)];
            points.extend(
                lost.into_iter()
                    .chain(refused)
                    .map(|(fault, may_fail)| Point {
                        fault,
                        may_fail,
                        by_ferroced: true,
                    }),
            );
        }
        points.retain(|point| {
            let only = self.sweep_only.as_deref();
            only.is_none_or(|only| point.fault.contains(only))
        });
        ensure!(
            !points.is_empty(),
            "there is no point: the test calls no verb and sends no packet through Ferroce{}",
            match self.sweep_only {
                Some(_) => ", or --sweep-only fits none",
                None => "",
            }
        );
        let same = first.output == second.output;
        Ok((points, same.then_some(first.output)))
    }

    /// Runs the test with a fault.
    fn attempt(
        &self,
        command: &mut impl FnMut() -> Result<Command>,
        counts: &RunCounts,
        faults: &str,
    ) -> Result<Run> {
        let output = tempfile()?;
        let mut child = command()?
            .envs(counts.environment(faults))
            .env(ferroce_control::path::QUIET_VARIABLE, "1")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot run the test")?;
        let began = now();
        let pid = Pid::from_child(&child);
        let ended = await_end(pid, Duration::from_secs(self.sweep_limit))?;
        // Ends the test, or what it has left running.
        let _gone = kill_process_group(pid, Signal::KILL);
        let status = child.wait()?;
        let took = now() - began;
        let length = usize::try_from(rustix::fs::fstat(&output)?.st_size)?;
        let mut bytes = vec![0; length];
        rustix::io::pread(&output, &mut bytes, 0)?;
        Ok(Run {
            status: ended.then_some(status),
            output: bytes,
            took,
        })
    }
}

/// Fails if the test does not pass without faults.
fn check(run: &Run) -> Result<()> {
    match run.status {
        Some(status) if status.success() => Ok(()),
        Some(status) => {
            bail!("the test fails without any fault ({status}); a sweep needs a test that passes")
        }
        None => bail!(
            "the test does not end within the limit without any fault; --sweep-limit SECONDS \
             sets a longer one"
        ),
    }
}

fn judge(run: &Run, point: &Point, expected: Option<&[u8]>) -> Verdict {
    let Some(status) = run.status else {
        return Verdict::Hangs;
    };
    // A shell reports the signal of its last command as 128 and its number.
    let code = status.code().unwrap_or(0);
    match status
        .signal()
        .or((129..160).contains(&code).then_some(code - 128))
    {
        Some(signal) => Verdict::Crashes(signal),
        None if status.success() && expected.is_some_and(|expected| expected != run.output) => {
            Verdict::Corrupts
        }
        None if status.success() => Verdict::Survived,
        None if point.may_fail => Verdict::Noticed,
        None => Verdict::Fails,
    }
}

impl Verdict {
    fn is_finding(self) -> bool {
        !matches!(self, Verdict::Survived | Verdict::Noticed)
    }

    fn text(self) -> String {
        match self {
            Verdict::Survived => "survived".into(),
            Verdict::Noticed => "reported as a failure".into(),
            Verdict::Hangs => "HANGS".into(),
            Verdict::Crashes(signal) => format!("CRASHES with signal {signal}"),
            Verdict::Fails => "FAILS, although the transport repairs this".into(),
            Verdict::Corrupts => "PASSES WITH ANOTHER OUTPUT".into(),
            Verdict::Unsteady => "undecided: the test is not steady".into(),
        }
    }
}

/// Waits for the end of a process. Returns false at the limit.
fn await_end(pid: Pid, limit: Duration) -> Result<bool> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let until = now() + limit;
    loop {
        let left = until.saturating_duration_since(now());
        let timeout = Timespec::try_from(left)?;
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn tempfile() -> Result<std::os::fd::OwnedFd> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    rustix::fs::memfd_create("output", flags).context("cannot store the output of the test")
}

/// Returns words as a shell takes them.
fn quoted(words: &[OsString]) -> String {
    let quoted = words.iter().map(|word| {
        let word = word.to_string_lossy();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
        match !word.is_empty() && word.chars().all(is_plain) {
            true => word.into_owned(),
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[allow(clippy::disallowed_methods)] // a hanging test is ended by the clock
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(code: i32, output: &str) -> Run {
        Run {
            status: Some(ExitStatus::from_raw(code)),
            output: output.into(),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn verdict_depends_on_status_output_and_fault() {
        let verb = Point {
            fault: "fail ibv_reg_mr 1 ENOMEM".into(),
            may_fail: true,
            by_ferroced: false,
        };
        let packet = Point {
            fault: "drop the 1st packet".into(),
            may_fail: false,
            by_ferroced: false,
        };
        let failed = 1 << 8;
        let of_shell = 139 << 8;
        let expected = Some("same".as_bytes());
        for (status, output, point, verdict) in [
            (0, "same", &verb, Verdict::Survived),
            (0, "other", &packet, Verdict::Corrupts),
            (failed, "", &verb, Verdict::Noticed),
            (failed, "", &packet, Verdict::Fails),
            (11, "", &verb, Verdict::Crashes(11)),
            (of_shell, "", &verb, Verdict::Crashes(11)),
        ] {
            assert_eq!(judge(&run(status, output), point, expected), verdict);
        }
        let hung = Run {
            status: None,
            ..run(0, "")
        };
        assert_eq!(judge(&hung, &verb, expected), Verdict::Hangs);
        assert_eq!(judge(&run(0, "any"), &verb, None), Verdict::Survived);
    }

    #[test]
    fn command_of_a_finding_can_be_pasted() {
        let words = ["sh", "-c", "it's $1"].map(OsString::from);
        assert_eq!(quoted(&words), r"sh -c 'it'\''s $1'");
    }
}
