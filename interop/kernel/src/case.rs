//! The definition of a case: one row of the matrix.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::network::{GUEST, HOST};
use crate::run::Site;
use crate::weather::Weather;

/// A function that replaces the usual server and client. It may leave files in the folder.
pub(crate) type Script = fn(&mut Site, &Case, &Path) -> Result<()>;

/// The side that runs the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Ferroce,
    Kernel,
}

/// Both sides, for tables.
pub(crate) const CALLERS: [Caller; 2] = [Caller::Ferroce, Caller::Kernel];

/// The type of the links at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Link {
    /// RoCE
    Rxe,
    /// iWARP
    Siw,
}

impl Link {
    /// Returns the name of the link at each end.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Link::Rxe => "rxe0",
            Link::Siw => "siw0",
        }
    }

    /// Returns the word of `rdma link add`.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Link::Rxe => "rxe",
            Link::Siw => "siw",
        }
    }
}

/// One case.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Heading in the report.
    pub(crate) group: &'static str,
    /// Command of the client.
    pub(crate) client: String,
    pub(crate) server: String,
    pub(crate) caller: Caller,
    /// Sign that the server is ready.
    pub(crate) ready: Ready,
    pub(crate) link: Link,
    /// MTU of the netdevs.
    pub(crate) mtu: u32,
    pub(crate) weather: Weather,
    /// The server does not end with its client, or its exit status means nothing.
    pub(crate) persistent: bool,
    /// Texts that the client's output must contain.
    pub(crate) expect: Vec<&'static str>,
    /// Operations that the capture must contain, see [`crate::capture`].
    pub(crate) packets: Option<&'static str>,
    pub(crate) patience: Duration,
    /// Number of attempts. More than one where an unreliable transport may lose messages.
    pub(crate) attempts: u32,
    /// The case is part of the short matrix.
    pub(crate) short: bool,
    /// Replaces the usual server and client, if given.
    pub(crate) script: Option<Script>,
    /// Examines the complete capture of a case that works, if given.
    pub(crate) inspect: Option<fn(&Path) -> Result<()>>,
}

/// The sign that a server is ready.
#[derive(Debug, Clone)]
pub(crate) enum Ready {
    /// A process listens on this TCP port.
    Listens(u16),
    /// A process listens on this rdma_cm port.
    Answers(u16),
    /// The server prints this text.
    Says(&'static str),
}

impl Caller {
    /// Returns the other side.
    pub(crate) fn other(self) -> Caller {
        match self {
            Caller::Ferroce => Caller::Kernel,
            Caller::Kernel => Caller::Ferroce,
        }
    }
}

impl Case {
    /// Returns a case whose server and client run the same command; the client's ends with
    /// the server's address. `{port}` stands for a TCP port, `{side}` for `ferroce` or `kernel`.
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
            link: Link::Rxe,
            mtu: 1500,
            weather: Weather::Fair,
            persistent: false,
            expect: Vec::new(),
            packets: None,
            patience: Duration::from_secs(60),
            attempts: 1,
            short: false,
            script: None,
            inspect: None,
        }
    }

    /// Returns a case whose server listens with rdma_cm. `{peer}` and `{peer6}` stand for the
    /// server's addresses.
    pub(crate) fn with_cm_server(
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

    /// Returns the TCP or rdma_cm port of the server.
    pub(crate) fn port(&self) -> Result<u16> {
        match self.ready {
            Ready::Listens(port) | Ready::Answers(port) => Ok(port),
            Ready::Says(_) => bail!("a server without a port"),
        }
    }

    /// Returns the name in reports.
    pub(crate) fn name(&self) -> String {
        // The TCP port is of no interest.
        let words = self.client.split_whitespace();
        let mut words: Vec<&str> = words.collect();
        if let Some(at) = words.iter().position(|word| *word == "-p") {
            words.drain(at..(at + 2).min(words.len()));
        }
        let mut name = words.join(" ");
        name.push_str(match self.caller {
            Caller::Ferroce => ", Ferroce client",
            Caller::Kernel => ", Ferroce server",
        });
        if self.link == Link::Siw {
            name.push_str(", siw");
        }
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

    /// Runs the case on links of type siw.
    pub(crate) fn on_siw(mut self) -> Case {
        self.link = Link::Siw;
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

    /// Has the capture checked, which must contain these operations.
    pub(crate) fn packets(mut self, operations: &'static str) -> Case {
        self.packets = Some(operations);
        self
    }

    pub(crate) fn may_lose(mut self) -> Case {
        self.attempts = 3;
        self.patience = Duration::from_secs(30);
        self
    }

    /// Adds the case to the short matrix.
    pub(crate) fn short(mut self) -> Case {
        self.short = true;
        self
    }
}
