//! The throughput of one TCP stream, measured with iperf3 if it is installed.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use ferroce_testnet::namespace;

const PORT: &str = "5201";

/// An iperf3 server and its address.
pub(crate) struct Iperf {
    server: Child,
    address: IpAddr,
}

impl Iperf {
    /// Returns true if iperf3 is installed.
    pub(crate) fn is_there() -> bool {
        let found = Command::new("iperf3")
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        found.is_ok_and(|status| status.success())
    }

    /// Starts a server in the network namespace `place`, or in the current one.
    pub(crate) fn start(address: IpAddr, place: Option<OwnedFd>) -> Result<Iperf> {
        let mut command = Command::new("iperf3");
        command
            .args(["--server", "--port", PORT, "--bind", &address.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if let Some(place) = place {
            namespace::place(&mut command, place);
        }
        let server = command.spawn().context("iperf3")?;
        Ok(Iperf { server, address })
    }

    /// Returns the received bytes per second.
    pub(crate) fn measure(&self) -> Result<f64> {
        let output = Command::new("iperf3")
            .args(["--client", &self.address.to_string(), "--port", PORT])
            .args(["--json", "--parallel", "1", "--time", "1"])
            .output()
            .context("iperf3")?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "iperf3: {said}");
        let report: serde_json::Value = serde_json::from_str(&said)?;
        let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
        Ok(bits.with_context(|| format!("iperf3 said {said}"))? / 8.0)
    }
}

impl Drop for Iperf {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
