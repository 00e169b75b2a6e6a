//! Probes: the runs of programs, plain sockets, pipes and copies that give figures.

use serde::{Deserialize, Serialize};

use super::sample::{self, Sample};

/// A measurement: a program with its options, or plain sockets.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Probe {
    /// The program.
    pub tool: Tool,
    /// Bytes of a message.
    pub size: u32,
    /// Path MTU; 0 for the program's own choice.
    pub mtu: u32,
    /// Number of queue pairs or TCP streams.
    pub qps: u32,
    /// Further options.
    pub options: &'static str,
    /// The wire of a program over Ferroce.
    pub wire: Wire,
    /// The device.
    pub device: Device,
}

/// The wire between two programs over Ferroce.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Wire {
    /// UDP, as between two hosts.
    Udp,
    /// Shared memory.
    Local,
}

/// The device of a program that runs over Ferroce.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Device {
    /// A link of type rxe.
    Rxe,
    /// A link of type siw without CRCs, as siw has it by default.
    Siw,
    /// A link of type siw with CRCs.
    SiwCrc,
}

/// A measuring program.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tool {
    /// A program of perftest, over Ferroce.
    Perftest(&'static str),
    /// A test of ucx_perftest, over Ferroce.
    Ucx(&'static str),
    /// The same over TCP.
    UcxTcp(&'static str),
    /// The same through shared memory.
    UcxMemory(&'static str),
    /// fi_pingpong over Ferroce.
    Fabric,
    /// fi_pingpong over TCP.
    FabricTcp,
    /// fi_pingpong through shared memory.
    FabricMemory,
    /// A test of qperf, over Ferroce.
    Qperf(&'static str),
    /// A test of qperf that uses plain TCP or UDP.
    QperfSocket(&'static str),
    /// iperf3 over TCP.
    Iperf,
    /// Plain sockets, pipes or copies of this benchmark.
    Sockets(Sockets),
}

/// A measurement of plain sockets, or of another way between two processes of one host.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Sockets {
    /// Segmented sends with a copy and a CRC on each side; both ends poll.
    Stream,
    /// A ping-pong of connected sockets that poll.
    Polling,
    /// A ping-pong of connected sockets that block.
    Blocking,
    /// A ping-pong with the sockets' settings of a reliable queue pair: the socket floor.
    Floor,
    /// A ping-pong of two processes that block in reading a pipe.
    Pipe,
    /// Copies in one thread.
    Memcpy,
    /// A ping-pong over TCP with TCP_NODELAY; both ends poll.
    TcpPolling,
    /// The same; both ends block.
    TcpBlocking,
}

impl Tool {
    /// Returns the name of the executable; empty for the benchmark's own sockets.
    pub const fn executable(self) -> &'static str {
        match self {
            Tool::Perftest(name) => name,
            Tool::Ucx(_) | Tool::UcxTcp(_) | Tool::UcxMemory(_) => "ucx_perftest",
            Tool::Fabric | Tool::FabricTcp | Tool::FabricMemory => "fi_pingpong",
            Tool::Qperf(_) | Tool::QperfSocket(_) => "qperf",
            Tool::Iperf => "iperf3",
            Tool::Sockets(_) => "",
        }
    }

    /// Returns true if the program runs over Ferroce, and false for a reference.
    pub const fn is_ours(self) -> bool {
        use Tool::{Fabric, Perftest, Qperf, Ucx};
        matches!(self, Perftest(_) | Ucx(_) | Fabric | Qperf(_))
    }

    /// Returns the name for tables and legends.
    pub const fn name(self) -> &'static str {
        match self {
            Tool::Perftest(name) | Tool::Qperf(name) | Tool::QperfSocket(name) => name,
            Tool::Ucx(test) => test,
            Tool::UcxTcp(_) => "UCX over TCP",
            Tool::UcxMemory(_) => "UCX memory",
            Tool::Fabric => "fi_pingpong",
            Tool::FabricTcp => "libfabric over TCP",
            Tool::FabricMemory => "libfabric shm",
            Tool::Iperf => "iperf3",
            Tool::Sockets(Sockets::Stream) => "plain UDP",
            Tool::Sockets(Sockets::Polling) => "polling UDP",
            Tool::Sockets(Sockets::Blocking) => "blocking UDP",
            Tool::Sockets(Sockets::Floor) => "socket floor",
            Tool::Sockets(Sockets::Pipe) => "blocking pipe",
            Tool::Sockets(Sockets::Memcpy) => "memcpy",
            Tool::Sockets(Sockets::TcpPolling) => "polling TCP",
            Tool::Sockets(Sockets::TcpBlocking) => "blocking TCP",
        }
    }
}

/// The length of one run of a program: bytes to transfer, and messages to exchange.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RunLength {
    /// Bytes of a bandwidth measurement.
    pub bytes: u64,
    /// Most messages of a bandwidth measurement.
    pub messages: u64,
    /// Round trips of a latency measurement.
    pub round_trips: u32,
    /// Milliseconds of a stream of plain datagrams.
    pub ms: u64,
}

/// A command line of server and client; the client's has the server's address, too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lines {
    /// The server's words.
    pub server: Vec<String>,
    /// The client's words.
    pub client: Vec<String>,
    /// Environment variables of both.
    pub environment: Vec<(&'static str, String)>,
    /// True if the server ends with the client.
    pub server_ends: bool,
}

/// The addresses that command lines name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// The server's IP address.
    pub peer: &'static str,
    /// The RDMA device.
    pub link: &'static str,
    /// The netdev of that device.
    pub netdev: &'static str,
    /// The server's TCP port.
    pub port: u16,
}

impl Probe {
    /// Creates a probe with one queue pair and the program's own MTU.
    pub const fn new(tool: Tool, size: u32) -> Probe {
        Probe {
            tool,
            size,
            mtu: 0,
            qps: 1,
            options: "",
            wire: Wire::Udp,
            device: Device::Rxe,
        }
    }

    /// Returns the probe over the local wire.
    #[must_use]
    pub fn local(mut self) -> Probe {
        self.wire = Wire::Local;
        self
    }

    /// Returns the probe with a path MTU.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Probe {
        self.mtu = mtu;
        self
    }

    /// Returns the probe with a number of queue pairs.
    #[must_use]
    pub fn qps(mut self, qps: u32) -> Probe {
        self.qps = qps;
        self
    }

    /// Returns the probe with further options.
    #[must_use]
    pub fn options(mut self, options: &'static str) -> Probe {
        self.options = options;
        self
    }

    /// Returns the probe on another device.
    #[must_use]
    pub fn on(mut self, device: Device) -> Probe {
        self.device = device;
        self
    }

    /// Returns the words for the table, for example `ib_write_bw -s 64 -l 16`.
    pub fn label(&self) -> String {
        let mut label = match self.tool {
            Tool::Ucx(test) => format!("ucx_perftest -t {test}"),
            Tool::Qperf(test) => format!("qperf -cm 1 {test}"),
            other => other.name().to_owned(),
        };
        if self.device != Device::Rxe {
            label += " -R";
        }
        if self.size > 0 {
            label += &format!(" -s {}", bytes(self.size));
        }
        if self.mtu > 0 {
            label += &format!(" -m {}", self.mtu);
        }
        if self.qps > 1 {
            label += &format!(" -q {}", self.qps);
        }
        if !self.options.is_empty() {
            label += &format!(" {}", self.options);
        }
        if self.wire == Wire::Local {
            label += ", local wire";
        }
        if self.device == Device::SiwCrc {
            label += ", CRC";
        }
        label
    }

    /// Returns the command lines of server and client; `None` for plain sockets.
    pub fn lines(&self, at: &Addresses, run_length: RunLength) -> Option<Lines> {
        let Addresses { peer, port, .. } = at;
        let line = match self.tool {
            Tool::Sockets(_) => return None,
            Tool::Perftest(name) => self.perftest(name, at, run_length),
            Tool::Ucx(test) => self.ucx(test, at, run_length).with(&[
                ("UCX_TLS", "rc_v,self"),
                ("UCX_NET_DEVICES", &format!("{}:1", at.link)),
                ("UCX_IB_GID_INDEX", "1"),
            ]),
            Tool::UcxTcp(test) => self
                .ucx(test, at, run_length)
                .with(&[("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", at.netdev)]),
            Tool::UcxMemory(test) => self
                .ucx(test, at, run_length)
                .with(&[("UCX_TLS", "posix,cma,self")]),
            Tool::Fabric => self.fabric(&format!("-p verbs -e msg -d {}", at.link), at, run_length),
            Tool::FabricTcp => self.fabric("-p tcp -e msg", at, run_length),
            Tool::FabricMemory => self.fabric("-p shm -e rdm", at, run_length),
            Tool::Qperf(test) => {
                let size = self.size;
                let client = format!("qperf {peer} -lp {port} -t 1 -cm 1 -m {size} {test}");
                Lines::of(&format!("qperf -lp {port}"), &client, false)
            }
            Tool::QperfSocket(test) => {
                let client = format!("qperf {peer} -lp {port} -t 1 -m {} {test}", self.size);
                Lines::of(&format!("qperf -lp {port}"), &client, false)
            }
            Tool::Iperf => {
                let mut client = format!("iperf3 -c {peer} -p {port} -J -t 1 -P {}", self.qps);
                if self.size > 0 {
                    client += &format!(" -l {}", self.size);
                }
                client += &format!(" {}", self.options);
                Lines::of(&format!("iperf3 -s -1 -p {port}"), &client, true)
            }
        };
        let wire = match self.wire {
            Wire::Udp => "udp",
            Wire::Local => "local",
        };
        Some(match self.tool.is_ours() {
            true => line.with(&[("FERROCE_WIRE", wire)]),
            false => line,
        })
    }

    fn perftest(&self, name: &str, at: &Addresses, run_length: RunLength) -> Lines {
        let Probe {
            size, qps, options, ..
        } = self;
        // Queue pairs of iWARP are connected by rdma_cm, and its GIDs are not addresses.
        let connects = match self.device {
            Device::Rxe => "-x 1",
            Device::Siw | Device::SiwCrc => "-R",
        };
        // `-F` silences warnings about the processor's frequency.
        let (link, port) = (at.link, at.port);
        let mut both = format!("{name} -d {link} {connects} -F -p {port} {options}");
        if !name.starts_with("ib_atomic") {
            both += &format!(" -s {size}");
        }
        if self.mtu > 0 {
            both += &format!(" -m {}", self.mtu);
        }
        if name.ends_with("_lat") {
            both += &format!(" -n {}", run_length.round_trips);
        } else {
            // `-n` counts the messages of each queue pair. It must be a multiple of the
            // number of completions that one CQE stands for.
            let most = (run_length.bytes / u64::from(*size)).clamp(200, run_length.messages);
            let each = (most / u64::from(*qps)).next_multiple_of(400);
            both += &format!(" -q {qps} -n {each} --report_gbits");
        }
        Lines::of(&both, &format!("{both} {}", at.peer), true)
    }

    fn ucx(&self, test: &str, at: &Addresses, run_length: RunLength) -> Lines {
        let count = match test.ends_with("_lat") {
            true => u64::from(run_length.round_trips),
            false => (run_length.bytes / u64::from(self.size)).clamp(200, run_length.messages),
        };
        let (size, port) = (self.size, at.port);
        let both = format!("-p {port} -t {test} -s {size} -n {count} -w 200");
        let client = format!("ucx_perftest {} {both}", at.peer);
        Lines::of(&format!("ucx_perftest {both}"), &client, true)
    }

    fn fabric(&self, options: &str, at: &Addresses, run_length: RunLength) -> Lines {
        let (size, times) = (self.size, run_length.round_trips);
        let both = format!("fi_pingpong {options} -S {size} -I {times}");
        let client = format!("{both} -P {} {}", at.port, at.peer);
        Lines::of(&format!("{both} -B {}", at.port), &client, true)
    }

    /// Parses the client's output.
    ///
    /// # Errors
    /// If there are no figures in it.
    pub fn parse(&self, text: &str) -> anyhow::Result<Sample> {
        match self.tool {
            Tool::Perftest(name) if name.ends_with("_lat") => sample::perftest_latency(text),
            Tool::Perftest(_) => sample::perftest_bandwidth(text),
            Tool::Ucx(_) | Tool::UcxTcp(_) | Tool::UcxMemory(_) => sample::ucx(text),
            Tool::Fabric | Tool::FabricTcp | Tool::FabricMemory => sample::fabric(text),
            Tool::Qperf(_) | Tool::QperfSocket(_) => sample::qperf(text),
            Tool::Iperf => sample::iperf(text),
            Tool::Sockets(_) => anyhow::bail!("plain sockets print nothing"),
        }
    }
}

impl Lines {
    fn of(server: &str, client: &str, server_ends: bool) -> Lines {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        Lines {
            server: words(server),
            client: words(client),
            environment: Vec::new(),
            server_ends,
        }
    }

    fn with(mut self, variables: &[(&'static str, &str)]) -> Lines {
        let variables = variables
            .iter()
            .map(|&(name, value)| (name, value.to_owned()));
        self.environment.extend(variables);
        self
    }
}

/// Formats a number of bytes: `8`, `64K` or `1M`.
pub fn bytes(size: u32) -> String {
    match size {
        0..1024 => size.to_string(),
        1024..0x10_0000 => format!("{}K", size >> 10),
        _ => format!("{}M", size >> 20),
    }
}
