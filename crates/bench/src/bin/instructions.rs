//! Counts the engine's instructions for each packet, and compares with recorded counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use ferroce_bench::instructions::{Change, SIDES, WORKLOADS, Workload, change, inclusive};
use serde::{Deserialize, Serialize};

/// Count the engine's instructions for each packet.
///
/// Runs fixed workloads of two engines that exchange packets in memory, under
/// `valgrind --tool=callgrind`. Compares with the counts in a file: more than 5 %
/// more is an error. Counts depend on the compiler, so with another compiler than
/// the recorded one the differences are only printed.
#[derive(Debug, Parser)]
#[command(name = "instructions", after_help = EXAMPLES)]
struct Cli {
    /// File with the recorded counts.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "crates/bench/instructions.json"
    )]
    file: PathBuf,

    /// Version of the compiler, as `rustc --version` prints it.
    #[arg(long, value_name = "TEXT", default_value = "unknown")]
    rustc: String,

    /// Record the new counts in the file.
    #[arg(long)]
    accept: bool,

    /// Run only this workload, in this process
    #[arg(long, hide = true)]
    workload: Option<String>,
}

const EXAMPLES: &str = "\
EXAMPLES
  cargo xtask bench instructions             compare with the recorded counts
  cargo xtask bench instructions --accept    record new counts

EXIT STATUS
  0 if no count is more than 5 % above the recorded one; 1 if one is, or valgrind failed.";

/// The file of counts.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Counts {
    /// The compiler's version.
    rustc: String,
    /// The version of valgrind.
    valgrind: String,
    /// Instructions for each packet, by workload and side.
    per_packet: BTreeMap<String, f64>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.workload {
        Some(name) => run_workload(name),
        None => cli.compare(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a workload and prints its number of packets.
fn run_workload(name: &str) -> Result<()> {
    let found = WORKLOADS.iter().find(|workload| workload.name == name);
    let workload = found.with_context(|| format!("no workload is named {name:?}"))?;
    println!("{}", workload.run()?);
    Ok(())
}

impl Cli {
    fn compare(&self) -> Result<()> {
        if cfg!(debug_assertions) {
            bail!("built without optimisation, so the counts mean nothing; build with --release");
        }
        let new = Counts {
            rustc: self.rustc.clone(),
            valgrind: valgrind_version()?,
            per_packet: count_all()?,
        };
        let file = self.file.display();
        let old: Counts = match fs::read_to_string(&self.file) {
            Ok(text) => {
                serde_json::from_str(&text).with_context(|| format!("cannot parse {file}"))?
            }
            Err(_) if self.accept => Counts::default(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {file}")),
        };
        println!(
            "{:<34} {:>9} {:>9} {:>8}",
            "instructions per packet", "recorded", "now", "change"
        );
        let mut worse = Vec::new();
        for (name, &now) in &new.per_packet {
            let before = old.per_packet.get(name).copied();
            let (recorded, percent) = match before {
                None => ("-".to_owned(), "new".to_owned()),
                Some(b) => (
                    format!("{b:.1}"),
                    format!("{:+.1} %", (now / b - 1.0) * 100.0),
                ),
            };
            let verdict = match change(before, now) {
                Change::More => {
                    worse.push(name.as_str());
                    "  WORSE"
                }
                Change::Fewer => "  better: --accept records it",
                Change::Same | Change::New => "",
            };
            println!("{name:<34} {recorded:>9} {now:>9.1} {percent:>8}{verdict}");
        }
        if self.accept {
            let mut text = serde_json::to_string_pretty(&new)?;
            text.push('\n');
            fs::write(&self.file, text).with_context(|| format!("cannot write {file}"))?;
            println!("Recorded in {file}.");
            return Ok(());
        }
        if (&old.rustc, &old.valgrind) != (&new.rustc, &new.valgrind) {
            println!(
                "\n*** NOT JUDGED: the counts in {file} are of {} and {}, these of {} and {} ***",
                old.rustc, old.valgrind, new.rustc, new.valgrind
            );
            return Ok(());
        }
        ensure!(
            worse.is_empty(),
            "more than 5 % more instructions: {}; if the change is worth it, record it with \
             `cargo xtask bench instructions --accept`",
            worse.join("; ")
        );
        Ok(())
    }
}

fn count_all() -> Result<BTreeMap<String, f64>> {
    let mut counts = BTreeMap::new();
    for workload in WORKLOADS {
        for (side, count) in count(workload)? {
            counts.insert(format!("{}, {side}", workload.name), count);
        }
    }
    Ok(counts)
}

/// Runs a workload under callgrind; returns the instructions for each packet on each side.
fn count(workload: Workload) -> Result<Vec<(&'static str, f64)>> {
    let name = workload.name;
    let out = std::env::temp_dir().join(format!("ferroce-callgrind-{}", std::process::id()));
    let mut option = std::ffi::OsString::from("--callgrind-out-file=");
    option.push(&out);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(option)
        .arg(std::env::current_exe()?)
        .args(["--workload", name])
        .stdin(Stdio::null())
        .output()
        .context("cannot start valgrind; is it installed?")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: valgrind: {errors}");
    let file = fs::read_to_string(&out).context("cannot read callgrind's file");
    let _removed = fs::remove_file(&out);
    let file = file?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let packets: f64 = printed.trim().parse().context("no number of packets")?;
    let per_packet = |(side, part)| Ok((side, inclusive(&file, part)? as f64 / packets));
    SIDES.into_iter().map(per_packet).collect()
}

fn valgrind_version() -> Result<String> {
    let output = Command::new("valgrind").arg("--version").output();
    let output = output.context("cannot start valgrind; is it installed?")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
