//! Running of one case.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use ferroce_harness::{Running, deadline, now, pause};

use crate::capture::{self, Capture};
use crate::case::{Caller, Case, Link, Ready};
use crate::network::{MTU, Network};
use crate::vm::Vm;
use crate::weather::Weather;

/// This crate's own test programs, for both ends.
const PROGRAMS: [(&str, &str); 5] = [
    ("meeting.py", include_str!("../meeting.py")),
    ("flows.py", include_str!("../flows.py")),
    ("cm.py", include_str!("../cm.py")),
    ("connections.py", include_str!("../connections.py")),
    ("refusals.py", include_str!("../refusals.py")),
];

/// Both ends, and the current state of the network between them.
pub(crate) struct Site {
    pub(crate) network: Network,
    pub(crate) vm: Vm,
    link: Link,
    mtu: u32,
    weather: Weather,
}

impl Site {
    pub(crate) fn new(network: Network, vm: Vm) -> Result<Site> {
        // Programs run in the scratch folder.
        for (name, text) in PROGRAMS {
            fs::write(network.user.scratch.join(name), text)?;
        }
        let site = Site {
            network,
            vm,
            link: Link::Rxe,
            mtu: MTU,
            weather: Weather::Fair,
        };
        site.copy_test_programs()?;
        Ok(site)
    }

    /// Copies the test programs into the guest's working folder.
    fn copy_test_programs(&self) -> Result<()> {
        for (name, text) in PROGRAMS {
            let end = "END_OF_THE_PROGRAM";
            self.vm
                .run(&format!("cat >{name} <<'{end}'\n{text}\n{end}"))?;
        }
        Ok(())
    }

    /// Runs a case once. Logs and capture go to `folder`.
    pub(crate) fn attempt(&mut self, case: &Case, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        self.prepare(case)?;
        let capture = Capture::begin(folder)?;
        let result = match case.script {
            Some(script) => script(self, case, folder),
            None => self.run_pair(case, folder),
        };
        let file = capture.end(case.packets.is_some() || result.is_err())?;
        result?;
        if let Some(inspect) = case.inspect {
            inspect(&file)?;
        }
        match case.packets {
            Some(operations) => capture::check(&file, operations),
            None => Ok(()),
        }
    }

    /// Runs the server and the client of a case.
    pub(crate) fn run_pair(&self, case: &Case, folder: &Path) -> Result<()> {
        let until = deadline(case.patience);
        let mut server = self.serve(case, folder, "server", until)?;
        let mut client = self.spawn(case.caller, &case.client, folder, "client")?;
        client.wait_for_success(until)?;
        if !case.persistent {
            server.wait_for_success(until)?;
        }
        let said = client.output()?;
        for text in &case.expect {
            ensure!(said.contains(text), "the client did not print \"{text}\"");
        }
        Ok(())
    }

    /// Starts the server of a case; returns when it is ready.
    pub(crate) fn serve(
        &self,
        case: &Case,
        folder: &Path,
        what: &'static str,
        until: Instant,
    ) -> Result<Running> {
        let side = case.caller.other();
        let mut server = self.spawn(side, &case.server, folder, what)?;
        self.await_ready(&mut server, side, &case.ready, until)?;
        Ok(server)
    }

    /// Starts a program at one end. Its output goes to the file `what`.
    pub(crate) fn spawn(
        &self,
        side: Caller,
        command: &str,
        folder: &Path,
        what: &'static str,
    ) -> Result<Running> {
        Running::spawn(&mut self.program(side, command)?, folder, what)
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
            (Ready::Answers(port), _) => {
                let wanted = format!(":{port} ");
                loop {
                    let ids = self.connections(side)?;
                    let mut listeners = ids.lines().filter(|id| id.contains(" state LISTEN "));
                    if listeners.any(|id| id.contains(&wanted)) {
                        return Ok(());
                    }
                    if let Some(status) = server.wait_for_end(now())? {
                        anyhow::bail!("the server ended before it listened ({status})");
                    }
                    ensure!(now() < until, "the server does not listen");
                    pause();
                }
            }
            (Ready::Says(text), _) => {
                server.wait_for_output(text, until.saturating_duration_since(now()))
            }
            (Ready::Listens(port), Caller::Ferroce) => server.wait_for_listener(*port, until),
            (Ready::Listens(port), Caller::Kernel) => {
                let mut listener = self.vm.listener(*port)?;
                while !listener.is_listening()? {
                    if let Some(status) = server.wait_for_end(now())? {
                        anyhow::bail!("the server ended before it listened ({status})");
                    }
                    ensure!(now() < until, "the server does not listen");
                    pause();
                }
                Ok(())
            }
        }
    }

    /// Returns the output of `rdma resource show cm_id` at one end.
    fn connections(&self, side: Caller) -> Result<String> {
        let ask = ["rdma", "resource", "show", "cm_id"];
        match side {
            Caller::Kernel => self.vm.run(&ask.join(" ")),
            Caller::Ferroce => {
                let output = self.network.user.program(&ask).output()?;
                ensure!(output.status.success(), "rdma failed ({})", output.status);
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            }
        }
    }

    /// Sets links, MTU and impairment of the network for a case.
    pub(crate) fn prepare(&mut self, case: &Case) -> Result<()> {
        if case.link != self.link {
            self.network.replace_link(self.link, case.link)?;
            self.replace_guest_link(self.link, case.link)?;
            self.link = case.link;
        }
        if case.mtu != self.mtu {
            self.network.set_mtu(case.mtu);
            let command = format!("ip link set data0 mtu {}", case.mtu);
            self.vm.run(&command)?;
            self.mtu = case.mtu;
        }
        if case.weather != self.weather {
            self.vm.run(&case.weather.command()).context("netem")?;
            self.weather = case.weather;
        }
        Ok(())
    }

    /// Replaces the guest's link by one of another type.
    fn replace_guest_link(&self, old: Link, new: Link) -> Result<()> {
        let (old, new, kind) = (old.name(), new.name(), new.kind());
        let command = format!(
            "rdma link delete {old} && modprobe siw && \
             rdma link add {new} type {kind} netdev data0"
        );
        self.vm.run(&command).map(drop)
    }

    /// Resets the guest as a power cut would; returns when it is up again.
    pub(crate) fn reset_guest(&mut self) -> Result<()> {
        self.vm.reset()?;
        self.network.set_mtu(MTU);
        // The guest's setup adds a link of type rxe. Programs at this end still use their own.
        if self.link == Link::Siw {
            self.replace_guest_link(Link::Rxe, Link::Siw)?;
        }
        (self.mtu, self.weather) = (MTU, Weather::Fair);
        self.copy_test_programs()
    }

    /// Kills all processes of Ferroce, as a power cut would, and adds the link again.
    pub(crate) fn reset_ferroce(&mut self) -> Result<()> {
        self.network.restart(self.link)
    }

    /// Adds the guest's kernel log and the counters of both ends to the logs of a case.
    pub(crate) fn describe(&self, folder: &Path) {
        let ask = "dmesg | tail -n 60; rdma statistic show; rdma resource show qp";
        // A guest whose kernel has crashed accepts the command, and never replies.
        let said = match self.vm.answers() {
            true => self.vm.run(ask),
            false => Err(anyhow!("the guest does not reply: see its console")),
        };
        let said = said.unwrap_or_else(|error| format!("{error:#}"));
        let _unwritten = fs::write(folder.join("guest"), said);
        let said = self.network.user.ferroce(&["stat", self.link.name()]);
        let said = said.unwrap_or_else(|error| format!("{error:#}"));
        let _unwritten = fs::write(folder.join("ferroce"), said);
    }
}
