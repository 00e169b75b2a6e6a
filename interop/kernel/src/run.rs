//! Trying one case.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ferroce_harness::{Running, deadline, now, pause};

use crate::agent;
use crate::capture::{self, Capture};
use crate::case::{Caller, Case, Ready, Weather};
use crate::network::{MTU, Network};
use crate::vm::Vm;

const FLOWS: &str = include_str!("../flows.py");

/// How often a server is called that may not listen yet.
const CALLS: usize = 20;

/// Both ends, and how the network between them is at the moment.
pub(crate) struct Site {
    network: Network,
    pub(crate) vm: Vm,
    mtu: u32,
    weather: Weather,
}

impl Site {
    pub(crate) fn new(network: Network, vm: Vm) -> Result<Site> {
        // Where programs find themselves, at both ends.
        fs::write(network.user.scratch.join("flows.py"), FLOWS)?;
        vm.run(&format!(
            "cat >flows.py <<'END_OF_FLOWS'\n{FLOWS}\nEND_OF_FLOWS"
        ))?;
        Ok(Site {
            network,
            vm,
            mtu: MTU,
            weather: Weather::Fair,
        })
    }

    /// Tries a case; what was said and seen is kept in `folder`.
    pub(crate) fn attempt(&mut self, case: &Case, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        self.prepare(case)?;
        let capture = Capture::begin(folder)?;
        let result = self.act(case, folder);
        let file = capture.end(case.packets.is_some() || result.is_err())?;
        result?;
        match case.packets {
            Some(operations) => capture::check(&file, operations),
            None => Ok(()),
        }
    }

    fn act(&self, case: &Case, folder: &Path) -> Result<()> {
        let until = deadline(case.patience);
        let callee = match case.caller {
            Caller::Ferroce => Caller::Kernel,
            Caller::Kernel => Caller::Ferroce,
        };
        let mut command = self.program(callee, &case.server)?;
        let mut server = Running::spawn(&mut command, folder, "server")?;
        self.await_ready(&mut server, callee, &case.ready, until)?;
        let mut client = self.client(case, folder)?;
        let mut result = client.succeeds(until);
        if matches!(case.ready, Ready::WhenCalled) {
            for _ in 1..CALLS {
                if result.is_ok() || now() > until || server.ends(now())?.is_some() {
                    break;
                }
                pause();
                client = self.client(case, folder)?;
                result = client.succeeds(until);
            }
        }
        result?;
        if !case.persistent {
            server.succeeds(until)?;
        }
        let said = client.said()?;
        for text in &case.expect {
            ensure!(said.contains(text), "it does not say \"{text}\"");
        }
        Ok(())
    }

    fn client(&self, case: &Case, folder: &Path) -> Result<Running> {
        Running::spawn(
            &mut self.program(case.caller, &case.client)?,
            folder,
            "client",
        )
    }

    fn program(&self, side: Caller, command: &str) -> Result<Command> {
        match side {
            Caller::Kernel => self.vm.program(command),
            Caller::Ferroce => {
                let words: Vec<&str> = command.split_whitespace().collect();
                Ok(self.network.user.program(&words))
            }
        }
    }

    fn await_ready(
        &self,
        server: &mut Running,
        side: Caller,
        ready: &Ready,
        until: Instant,
    ) -> Result<()> {
        match (ready, side) {
            (Ready::WhenCalled, Caller::Kernel) => {
                let listening = "rdma resource show cm_id | grep -q LISTEN";
                let wait = format!("until {listening}; do sleep 0.1; done");
                self.vm.run(&format!("timeout 20 sh -c '{wait}'"))?;
                Ok(())
            }
            // It is called until it answers.
            (Ready::WhenCalled, Caller::Ferroce) => Ok(()),
            (Ready::Listens(port), Caller::Ferroce) => server.listens(*port, until),
            (Ready::Listens(port), Caller::Kernel) => {
                let mut listener = agent::Listener::new(*port)?;
                while !listener.is_there()? {
                    if let Some(status) = server.ends(now())? {
                        anyhow::bail!("the server ended before it listened ({status})");
                    }
                    ensure!(now() < until, "the server does not listen");
                    pause();
                }
                Ok(())
            }
        }
    }

    /// Makes the network what the case wants.
    fn prepare(&mut self, case: &Case) -> Result<()> {
        if case.mtu != self.mtu {
            self.network.set_mtu(case.mtu);
            let command = format!("ip link set data0 mtu {}", case.mtu);
            self.vm.run(&command)?;
            self.mtu = case.mtu;
        }
        if case.weather != self.weather {
            self.vm
                .run(&weather_command(case.weather))
                .context("netem")?;
            self.weather = case.weather;
        }
        Ok(())
    }

    /// Adds to what is kept of a case: what the kernel of the guest has to say, and counters.
    pub(crate) fn describe(&self, folder: &Path) {
        let ask = "dmesg | tail -n 60; rdma statistic show; rdma resource show qp";
        let said = self
            .vm
            .run(ask)
            .unwrap_or_else(|error| format!("{error:#}"));
        let _unwritten = fs::write(folder.join("guest"), said);
        let said = self.network.user.ferroce(&["stat", "rxe0"]);
        let said = said.unwrap_or_else(|error| format!("{error:#}"));
        let _unwritten = fs::write(folder.join("ferroce"), said);
    }
}

/// Sets netem up in the guest: on its netdev for what it sends, on a netdev of kind ifb that
/// gets all that arrives for what it receives.
fn weather_command(weather: Weather) -> String {
    let clear = "tc qdisc del dev data0 root 2>/dev/null; tc qdisc del dev data0 ingress 2>/dev/null; \
                 ip link del arrivals0 2>/dev/null; true";
    let Some(netem) = weather.netem() else {
        return clear.to_owned();
    };
    format!(
        "{clear}; set -e; ip link add arrivals0 type ifb; ip link set arrivals0 mtu 9000 up; \
         tc qdisc add dev data0 root netem limit 10000 {netem}; tc qdisc add dev data0 ingress; \
         tc filter add dev data0 ingress matchall action mirred egress redirect dev arrivals0; \
         tc qdisc add dev arrivals0 root netem limit 10000 {netem}"
    )
}
