//! The definition of a case: one row of the table.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;

use crate::place::Place;

/// One case.
pub(crate) struct Case {
    /// Name of the program, which is the heading in the report.
    pub(crate) program: &'static str,
    /// Command of the client, as users type it.
    pub(crate) name: String,
    pub(crate) action: Action,
    /// Texts that the client's output must contain.
    pub(crate) expect: Vec<&'static str>,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) patience: Duration,
    /// Number of attempts. More than one where an unreliable transport may lose messages: a
    /// receiver that gets no processor time loses them, and programs wait for them.
    pub(crate) attempts: u32,
    /// The program supports LIDs only: while it runs, rxe0 has `lids on`.
    pub(crate) by_lid: bool,
    /// The program runs on links of type siw: while it runs, siw0 and siw1 exist beside rxe0
    /// and rxe1.
    pub(crate) on_siw: bool,
    /// The case is attempted again only if the client printed this.
    pub(crate) excuse: Option<&'static str>,
}

/// The sign that a server is ready for clients.
#[derive(Clone, Copy)]
pub(crate) enum Ready {
    /// A process listens on this TCP port.
    Tcp(u16),
    /// This UDP port is bound.
    Udp(u16),
    /// A program listens on this rdma_cm port.
    Rdma(u16),
    /// A process on this host has joined this multicast group.
    Group(Ipv4Addr),
}

/// A test that needs more than a command line.
pub(crate) type Script = Box<dyn Fn(&Place) -> Result<String>>;

/// The way a case runs.
pub(crate) enum Action {
    /// One command.
    Alone(Vec<String>),
    /// A server, and a client that is started when the server is ready. Both must succeed.
    Pair {
        server: Vec<String>,
        client: Vec<String>,
        ready: Ready,
        /// The server does not end by itself and is killed.
        persistent: bool,
    },
    /// A test that needs more than a command line. Returns the output.
    Script(Script),
}

impl Case {
    /// Returns a case that runs one command, split at spaces.
    pub(crate) fn single_command(program: &'static str, command: &str) -> Case {
        Case::new(program, command.to_string(), Action::Alone(words(command)))
    }

    /// Returns a case that runs one command whose words may contain spaces.
    pub(crate) fn command(program: &'static str, name: String, words: Vec<String>) -> Case {
        Case::new(program, name, Action::Alone(words))
    }

    /// Returns a case whose server and client run the same command; the client's also has the
    /// server's address. `{port}` stands for the TCP port, `{peer}` for the server's address.
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

    /// Returns a case whose server listens on a TCP port and does not end by itself.
    pub(crate) fn with_tcp_server(
        program: &'static str,
        port: u16,
        server: &str,
        client: &str,
    ) -> Case {
        let case = Case::with_cm_server(program, port, server, client);
        case.ready(Ready::Tcp(port)).server_keeps_running()
    }

    /// Returns a case whose server listens with rdma_cm.
    pub(crate) fn with_cm_server(
        program: &'static str,
        port: u16,
        server: &str,
        client: &str,
    ) -> Case {
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
            on_siw: false,
            excuse: None,
        }
    }

    /// Sets the sign that the server is ready.
    pub(crate) fn ready(mut self, sign: Ready) -> Case {
        if let Action::Pair { ready, .. } = &mut self.action {
            *ready = sign;
        }
        self
    }

    /// Sets an environment variable.
    pub(crate) fn with(mut self, variable: &'static str, value: impl ToString) -> Case {
        let value = value.to_string();
        // In the name it stands before the program and after other variables.
        let at = self.name.find(self.program).unwrap_or(0);
        self.name.insert_str(at, &format!("{variable}={value} "));
        self.environment.push((variable, value));
        self
    }

    /// Marks a program that addresses its peer by LID only.
    pub(crate) fn by_lid(mut self) -> Case {
        self.by_lid = true;
        self
    }

    /// Runs the program on links of type siw.
    pub(crate) fn on_siw(mut self) -> Case {
        self.on_siw = true;
        self.with("FERROCE_TYPE", "siw")
    }

    pub(crate) fn expect(mut self, text: &'static str) -> Case {
        self.expect.push(text);
        self
    }

    /// Allows three attempts, because the transport is unreliable.
    pub(crate) fn may_lose(mut self) -> Case {
        self.attempts = 3;
        self.patience(20)
    }

    /// Allows ten attempts, each only if the client printed `excuse`, the sign of a bug of the
    /// program itself.
    pub(crate) fn retry_if_printed(mut self, excuse: &'static str) -> Case {
        (self.attempts, self.excuse) = (10, Some(excuse));
        self.patience(20)
    }

    /// Marks a server that ends by itself.
    pub(crate) fn server_ends(self) -> Case {
        self.persistent(false)
    }

    /// Marks a server that does not end by itself.
    pub(crate) fn server_keeps_running(self) -> Case {
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

/// Address of all servers, which run on this host.
const SERVER: &str = "127.0.0.1";

fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}
