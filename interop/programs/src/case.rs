//! What a row of the table is.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;

use crate::place::Place;

/// One thing to try.
pub(crate) struct Case {
    /// The program, which is the row's heading.
    pub(crate) program: &'static str,
    /// The command of whoever acts, as people type it.
    pub(crate) name: String,
    pub(crate) action: Action,
    /// What must stand in the output of whoever acts.
    pub(crate) expect: Vec<&'static str>,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) patience: Duration,
    /// How often it may fail, less one: unreliable transports lose messages when a
    /// receiver does not get its share of a processor, and programs wait for them.
    pub(crate) attempts: u32,
    /// It knows InfiniBand only: while it runs, LIDs of rxe0 stand for IPv4 addresses.
    pub(crate) by_lid: bool,
    /// It is tried again only if the client said this.
    pub(crate) excuse: Option<&'static str>,
}

/// What shows that a server can be called.
#[derive(Clone, Copy)]
pub(crate) enum Ready {
    /// It listens on this TCP port.
    Tcp(u16),
    /// It has this UDP port.
    Udp(u16),
    /// It listens on this port of rdma_cm.
    Rdma(u16),
    /// Somebody on this host is in this multicast group.
    Group(Ipv4Addr),
}

/// More than a command line can say.
pub(crate) type Script = Box<dyn Fn(&Place) -> Result<String>>;

/// How it is tried.
pub(crate) enum Action {
    /// One command.
    Alone(Vec<String>),
    /// A server, and a client that is started when the server is ready. Both must succeed.
    Pair {
        server: Vec<String>,
        client: Vec<String>,
        ready: Ready,
        /// The server goes on for ever and is ended.
        persistent: bool,
    },
    /// Something that needs more than a command line. Returns what was seen.
    Script(Script),
}

impl Case {
    /// One command, split at spaces.
    pub(crate) fn alone(program: &'static str, command: &str) -> Case {
        Case::new(program, command.to_string(), Action::Alone(words(command)))
    }

    /// One command with words that have spaces in them.
    pub(crate) fn command(program: &'static str, name: String, words: Vec<String>) -> Case {
        Case::new(program, name, Action::Alone(words))
    }

    /// A server and a client that are told the same, and the client whom to call.
    /// `{port}` stands for the TCP port, `{peer}` for the address of the server.
    pub(crate) fn pair(program: &'static str, port: u16, command: &str) -> Case {
        let command = command.replace("{port}", &port.to_string());
        let server = words(&command.replace("{peer}", ""));
        let client = match command.contains("{peer}") {
            true => words(&command.replace("{peer}", SERVER)),
            false => words(&format!("{command} {SERVER}")),
        };
        let name = client.join(" ");
        let action = Action::Pair {
            server,
            client,
            ready: Ready::Tcp(port),
            persistent: false,
        };
        Case::new(program, name, action)
    }

    /// A server that listens on a TCP port, serves one client after the other and is ended,
    /// and a client.
    pub(crate) fn served(program: &'static str, port: u16, server: &str, client: &str) -> Case {
        let case = Case::called(program, port, server, client);
        case.ready(Ready::Tcp(port)).goes_on()
    }

    /// A server that listens over RDMA, and a client.
    pub(crate) fn called(program: &'static str, port: u16, server: &str, client: &str) -> Case {
        let fill = |text: &str| {
            let text = text.replace("{port}", &port.to_string());
            text.replace("{peer}", SERVER)
        };
        let action = Action::Pair {
            server: words(&fill(server)),
            client: words(&fill(client)),
            ready: Ready::Rdma(port),
            persistent: false,
        };
        Case::new(program, fill(client), action)
    }

    pub(crate) fn script(
        program: &'static str,
        name: &str,
        script: impl Fn(&Place) -> Result<String> + 'static,
    ) -> Case {
        Case::new(program, name.to_string(), Action::Script(Box::new(script)))
    }

    fn new(program: &'static str, name: String, action: Action) -> Case {
        Case {
            program,
            name,
            action,
            expect: Vec::new(),
            environment: Vec::new(),
            patience: Duration::from_secs(60),
            attempts: 1,
            by_lid: false,
            excuse: None,
        }
    }

    /// Something else shows that the server is ready.
    pub(crate) fn ready(mut self, sign: Ready) -> Case {
        if let Action::Pair { ready, .. } = &mut self.action {
            *ready = sign;
        }
        self
    }

    /// Sets a variable of the environment.
    pub(crate) fn with(mut self, variable: &'static str, value: impl ToString) -> Case {
        let value = value.to_string();
        // Where people write it: before the program, after other variables.
        let at = self.name.find(self.program).unwrap_or(0);
        self.name.insert_str(at, &format!("{variable}={value} "));
        self.environment.push((variable, value));
        self
    }

    /// It can address its peer by LID only.
    pub(crate) fn by_lid(mut self) -> Case {
        self.by_lid = true;
        self
    }

    pub(crate) fn expect(mut self, text: &'static str) -> Case {
        self.expect.push(text);
        self
    }

    /// Its transport is unreliable: what is lost is lost.
    pub(crate) fn may_lose(mut self) -> Case {
        self.attempts = 3;
        self.patience(20)
    }

    /// The program has a mistake of its own: then its client says this, and both are
    /// started again.
    pub(crate) fn may_say(mut self, excuse: &'static str) -> Case {
        (self.attempts, self.excuse) = (10, Some(excuse));
        self.patience(20)
    }

    /// The server ends by itself.
    pub(crate) fn ends(self) -> Case {
        self.persistent(false)
    }

    /// The server goes on for ever.
    pub(crate) fn goes_on(self) -> Case {
        self.persistent(true)
    }

    fn persistent(mut self, yes: bool) -> Case {
        if let Action::Pair { persistent, .. } = &mut self.action {
            *persistent = yes;
        }
        self
    }

    pub(crate) fn patience(mut self, seconds: u64) -> Case {
        self.patience = Duration::from_secs(seconds);
        self
    }
}

/// Where servers are called: all run on one host.
const SERVER: &str = "127.0.0.1";

fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}
