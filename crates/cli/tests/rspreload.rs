//! rdma-core's own librspreload.so with Ferroce's librdmacm: TCP sockets become rsockets.

mod common;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ferroce_testnet::deadline;

use common::{Cleanup, FERROCE, ok, with_libraries};

/// Bytes that the program sends in each direction.
const SIZE: u64 = 1 << 20;

/// Returns the path where Debian's package librdmacm1 installs the library.
fn librspreload() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").expect("a system");
    let mut candidates = folders.map(|folder| {
        let folder = folder.expect("an entry").path();
        folder.join("rsocket/librspreload.so")
    });
    let found = candidates.find(|path| path.exists());
    found.expect("rdma-core's librspreload.so; as root on Debian: apt-get install librdmacm1")
}

fn compile() -> PathBuf {
    let dir = std::env::var_os("FERROCE_RUNTIME_DIR").expect("the test is isolated");
    let program = PathBuf::from(dir).join("echo");
    let status = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/programs/echo.c"
        ))
        .status();
    assert!(status.expect("a C compiler").success());
    program
}

fn sent_bytes() -> u64 {
    let counters = ok("ferroce stat rxe0");
    let mut words = counters.split_whitespace();
    words.find(|word| *word == "sent_bytes").expect("counted");
    words.next().expect("a value").parse().expect("a number")
}

#[test]
fn librspreload_of_rdma_core_transfers_data() {
    with_libraries("librspreload_of_rdma_core_transfers_data", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let program = compile();
        let preload = format!("LD_PRELOAD={}", librspreload().display());
        let start = |role: &str| {
            let mut command = Command::new(FERROCE);
            command.args(["run", "--", "env", &preload]);
            command.arg(&program).arg(role);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            command.spawn().expect("ferroce starts")
        };
        let mut server = start("server");
        let mut words = BufReader::new(server.stdout.take().expect("piped"));
        let mut line = String::new();
        words.read_line(&mut line).expect("text");
        assert_eq!(line, "ready\n");
        let mut client = start("client");
        let mut said = BufReader::new(client.stdout.take().expect("piped"));
        // A regression would hang here: the library's own sockets became rsockets, too.
        if !deadline::readable_within(said.get_ref(), deadline::PATIENCE) {
            client.kill().expect("ours");
            server.kill().expect("ours");
            panic!("the client hangs");
        }
        let mut line = String::new();
        said.read_line(&mut line).expect("text");
        assert_eq!(line, "the same bytes\n");
        assert!(client.wait().expect("it ends").success());
        assert!(server.wait().expect("it ends").success());
        let sent = sent_bytes();
        assert!(sent > 2 * SIZE, "{sent} bytes went over RDMA");
    });
}
