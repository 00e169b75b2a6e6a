//! What a row of the matrix is.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::network::{GUEST, HOST};
use crate::run::Site;

/// What is done in place of running a server and a client; it may leave files in the folder.
pub(crate) type Script = fn(&mut Site, &Case, &Path) -> Result<()>;

/// Who runs the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Ferroce,
    Kernel,
}

/// Both, for tables.
pub(crate) const CALLERS: [Caller; 2] = [Caller::Ferroce, Caller::Kernel];

/// What the network between them does to packets, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weather {
    Fair,
    /// Of a hundred packets so many are lost.
    Loss(u8),
    Reordering,
    Duplication,
    /// 20 ms each way.
    Delay,
    /// The messages of connection managers arrive late in the guest.
    LateCalls,
}

/// How late.
pub(crate) const LATE: &str = "delay 300ms";

impl Weather {
    /// What it is called.
    pub(crate) fn name(self) -> Option<String> {
        match self {
            Weather::LateCalls => Some(format!("calls with {LATE}")),
            _ => self.netem(),
        }
    }

    /// In netem's words, if it is the same for all packets in both directions.
    pub(crate) fn netem(self) -> Option<String> {
        match self {
            Weather::Fair | Weather::LateCalls => None,
            Weather::Loss(percent) => Some(format!("loss {percent}%")),
            Weather::Reordering => Some("delay 2ms reorder 75% 50%".into()),
            Weather::Duplication => Some("duplicate 10%".into()),
            Weather::Delay => Some("delay 20ms".into()),
        }
    }
}

/// One thing to try.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// The row's heading.
    pub(crate) group: &'static str,
    /// What whoever acts types.
    pub(crate) client: String,
    pub(crate) server: String,
    pub(crate) caller: Caller,
    /// How one knows that the server is ready.
    pub(crate) ready: Ready,
    /// Of the netdevs.
    pub(crate) mtu: u32,
    pub(crate) weather: Weather,
    /// The server goes on when its client has gone, or does not say how it went.
    pub(crate) persistent: bool,
    /// What must stand in the output of the client.
    pub(crate) expect: Vec<&'static str>,
    /// What the capture must show: see [`crate::capture`].
    pub(crate) packets: Option<&'static str>,
    pub(crate) patience: Duration,
    /// How often it may fail, less one: what is lost on unreliable transports is lost.
    pub(crate) attempts: u32,
    /// Whether the short matrix has it.
    pub(crate) short: bool,
    /// If there is more to it than a server and a client.
    pub(crate) script: Option<Script>,
}

/// How one knows that a server is ready.
#[derive(Debug, Clone)]
pub(crate) enum Ready {
    /// Somebody listens on this TCP port.
    Listens(u16),
    /// Somebody listens on this port of rdma_cm.
    Answers(u16),
    /// It says so.
    Says(&'static str),
}

impl Caller {
    /// The other one.
    pub(crate) fn other(self) -> Caller {
        match self {
            Caller::Ferroce => Caller::Kernel,
            Caller::Kernel => Caller::Ferroce,
        }
    }
}

impl Case {
    /// A server and a client that are told the same, and the client whom to call. `{port}`
    /// stands for a TCP port, `{side}` for what it runs on.
    pub(crate) fn pair(group: &'static str, caller: Caller, port: u16, command: &str) -> Case {
        let command = command.replace("{port}", &port.to_string());
        let (callee, sides) = match caller {
            Caller::Ferroce => (GUEST[0], ["ferroce", "kernel"]),
            Caller::Kernel => (HOST[0], ["kernel", "ferroce"]),
        };
        Case {
            group,
            client: format!("{} {callee}", command.replace("{side}", sides[0])),
            server: command.replace("{side}", sides[1]),
            caller,
            ready: Ready::Listens(port),
            mtu: 1500,
            weather: Weather::Fair,
            persistent: false,
            expect: Vec::new(),
            packets: None,
            patience: Duration::from_secs(60),
            attempts: 1,
            short: false,
            script: None,
        }
    }

    /// A server that listens by way of rdma_cm, and a client. `{peer}` and `{peer6}` stand for
    /// addresses of the server.
    pub(crate) fn called(
        group: &'static str,
        caller: Caller,
        port: u16,
        server: &str,
        client: &str,
    ) -> Case {
        let callee = match caller {
            Caller::Ferroce => GUEST,
            Caller::Kernel => HOST,
        };
        let mut case = Case::pair(group, caller, port, server);
        let client = client.replace("{port}", &port.to_string());
        let client = client.replace("{peer}", callee[0]);
        case.client = client.replace("{peer6}", callee[1]);
        case.ready = Ready::Answers(port);
        case
    }

    /// The TCP port on which client and server meet.
    pub(crate) fn port(&self) -> Result<u16> {
        match self.ready {
            Ready::Listens(port) | Ready::Answers(port) => Ok(port),
            Ready::Says(_) => bail!("a server without a port"),
        }
    }

    /// For people.
    pub(crate) fn name(&self) -> String {
        // Which TCP port it was says nothing.
        let words = self.client.split_whitespace();
        let mut words: Vec<&str> = words.collect();
        if let Some(at) = words.iter().position(|word| *word == "-p") {
            words.drain(at..(at + 2).min(words.len()));
        }
        let mut name = words.join(" ");
        name.push_str(match self.caller {
            Caller::Ferroce => ", Ferroce calls",
            Caller::Kernel => ", Ferroce answers",
        });
        if self.mtu != 1500 {
            name.push_str(&format!(", MTU {}", self.mtu));
        }
        if let Some(weather) = self.weather.name() {
            name.push_str(&format!(", {weather}"));
        }
        name
    }

    pub(crate) fn expect(mut self, text: &'static str) -> Case {
        self.expect.push(text);
        self
    }

    pub(crate) fn persistent(mut self, persistent: bool) -> Case {
        self.persistent = persistent;
        self
    }

    pub(crate) fn mtu(mut self, mtu: u32) -> Case {
        self.mtu = mtu;
        self
    }

    pub(crate) fn weather(mut self, weather: Weather) -> Case {
        self.weather = weather;
        self
    }

    /// The capture is checked; it must show these operations.
    pub(crate) fn packets(mut self, operations: &'static str) -> Case {
        self.packets = Some(operations);
        self
    }

    pub(crate) fn may_lose(mut self) -> Case {
        self.attempts = 3;
        self.patience = Duration::from_secs(30);
        self
    }

    /// The short matrix has it, too.
    pub(crate) fn short(mut self) -> Case {
        self.short = true;
        self
    }
}
