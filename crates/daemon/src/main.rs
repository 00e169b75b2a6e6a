//! The program `ferroced`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ferroce_daemon::main()
}
