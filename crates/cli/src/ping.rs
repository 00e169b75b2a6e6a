//! `ferroce ping`: tests whether a RoCE connection manager answers at the other end.
//!
//! It sends a SIDR_REQ for a service that does not exist. Every connection manager, the
//! kernel's as well as Ferroce's, answers that the service is unknown, and that answer is
//! enough. The exchange needs no queue pair and leaves no state behind.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ferroce_cm::{Address, Event, PrivateData, SidrRequest};
use ferroce_control::link::MTUS;
use ferroce_control::{CmAnswer, CmCall, Connection, LinkInfo, Reply, Request};
use ferroce_net::{Passage, probe_path};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::{daemon, output};

/// A service ID that does not exist: it lies in no port space of rdma_cm.
const UNKNOWN_SERVICE: u64 = 0x00f0_f0f0_f0f0_f0f0;
/// The UDP port of RoCEv2.
const ROCE: u16 = 4791;
/// Bytes of headers and ICRC in the longest packet, without the IP header.
const ROCE_HEADERS: usize = 8 + 12 + 16 + 4 + 4;

/// Test whether a host answers over RoCE, and measure the round trip
#[derive(Debug, Args)]
#[command(
    long_about = "\
Sends requests to the connection manager of a host and measures the time until each answer. The \
request is a SIDR_REQ for a service that does not exist; the answer says so. A Ferroce with a link \
answers, and so do the kernel's Soft-RoCE and RoCE NICs. The time includes both daemons. Then the \
command finds the largest MTU that arrives, with datagrams to a closed port.",
    after_long_help = "\
EXIT STATUS
    0 if at least one answer arrived, 1 if not

EXAMPLES
    ferroce ping 10.0.0.2
    ferroce ping -c 1 -I rxe0 host.example"
)]
pub(crate) struct PingArgs {
    /// Name or address of the host
    host: String,

    /// Number of requests
    #[arg(short, long, default_value_t = 4)]
    count: u32,

    /// Seconds between requests
    #[arg(short, long, default_value_t = 0.5)]
    interval: f64,

    /// Seconds to wait for each answer
    #[arg(short = 'W', long, default_value_t = 2.0)]
    timeout: f64,

    /// Send over this link; default: the link that has the source address
    #[arg(short = 'I', long)]
    link: Option<String>,

    /// Do not search for the largest MTU
    #[arg(long)]
    no_mtu: bool,
}

impl PingArgs {
    pub(crate) fn run(self) -> Result<()> {
        ensure!(self.count > 0, "count 0 is not valid; use 1 or more");
        let seconds = |value: f64| Duration::try_from_secs_f64(value).ok();
        let interval = seconds(self.interval)
            .with_context(|| format!("interval {} is not a number of seconds", self.interval))?;
        let timeout = seconds(self.timeout)
            .with_context(|| format!("timeout {} is not a number of seconds", self.timeout))?;
        let to = resolve(&self.host)?;
        let mut connection = daemon::connect()?.context(
            "there is no link to send over: no ferroced runs in this network namespace; \
             `ferroce link add rxe0 type rxe netdev IF` adds a link",
        )?;
        let (link, from) = choose(connection.links()?, self.link.as_deref(), to)?;
        let (host, name) = (&self.host, &link.name);
        output::write(&format!(
            "PING {host} ({to}) from {from} {name}: RoCE connection manager\n"
        ))?;
        let address = Address {
            local: from,
            remote: to,
        };
        let mut times = Vec::new();
        for number in 1..=self.count {
            if number > 1 {
                #[allow(clippy::disallowed_methods)] // the user asked for this interval
                std::thread::sleep(interval);
            }
            let line = match ask(&mut connection, link.index, address, timeout)? {
                Some(time) => {
                    times.push(time);
                    format!("answer from {to}: seq={number} time={:.3} ms\n", ms(time))
                }
                None => format!("no answer from {to}: seq={number}\n"),
            };
            output::write(&line)?;
        }
        output::write(&summary(host, self.count, &times))?;
        if times.is_empty() {
            bail!(
                "{to} does not answer; check that it has a link (`ferroce link` or `rdma link` \
                 there) and that no firewall drops UDP port {ROCE}"
            );
        }
        match self.no_mtu {
            true => Ok(()),
            false => output::write(&largest(to, &link, timeout)?),
        }
    }
}

fn resolve(host: &str) -> Result<IpAddr> {
    let mut all = (host, ROCE)
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve host `{host}`"))?;
    let first = all
        .next()
        .with_context(|| format!("host `{host}` has no address"))?;
    Ok(first.ip())
}

/// Returns the link that has the source address for packets to `to`, and that address.
fn choose(links: Vec<LinkInfo>, wanted: Option<&str>, to: IpAddr) -> Result<(LinkInfo, IpAddr)> {
    let links = crate::link::show::chosen(links, wanted)?;
    let from = source(to).with_context(|| format!("there is no route to {to}"))?;
    let has = |link: &&LinkInfo| link.gids.iter().any(|gid| gid.address == from);
    if let Some(link) = links.iter().find(has) {
        return Ok((link.clone(), from));
    }
    let same = |address: &IpAddr| address.is_ipv4() == to.is_ipv4();
    let of = |link: &LinkInfo| link.gids.iter().map(|g| g.address).find(same);
    match links
        .iter()
        .find_map(|link| Some((link.clone(), of(link)?)))
    {
        // The user has chosen this link.
        Some(chosen) if wanted.is_some() => Ok(chosen),
        _ => bail!(
            "no link has the address {from}, from which packets to {to} are sent; add a link on \
             the netdev of {from}, or choose one with -I"
        ),
    }
}

/// Returns the source address that the kernel chooses for packets to `to`.
fn source(to: IpAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    #[allow(clippy::disallowed_methods)] // sends no packet: connect only looks up the route
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(to, ROCE))?;
    Ok(socket.local_addr()?.ip())
}

/// Sends one request. Returns the time until the answer, or `None` without an answer.
fn ask(
    connection: &mut Connection,
    link: u32,
    address: Address,
    timeout: Duration,
) -> Result<Option<Duration>> {
    let request = SidrRequest {
        address,
        service_id: UNKNOWN_SERVICE,
        private_data: PrivateData::new(&[])?,
    };
    let request = Box::new(request);
    let start = now();
    let mut reply = connection
        .request(&Request::Cm(CmCall::SidrRequest { link, request }))?
        .0;
    let mut asked = None;
    let mut answered = None;
    loop {
        match reply {
            Reply::CmAnswer(CmAnswer::SidrRequested { sidr }) => asked = Some(sidr),
            Reply::CmEvent(event) => match event.event {
                Event::SidrReply { sidr, .. } => answered = Some((sidr, now() - start)),
                Event::SidrUnreachable { .. } => return Ok(None),
                _ => {}
            },
            _ => {}
        }
        if let (Some(asked), Some((sidr, time))) = (asked, answered)
            && asked.id == sidr
        {
            return Ok(Some(time));
        }
        let left = timeout.saturating_sub(now() - start);
        if let Some(sidr) = asked
            && !readable(connection, left)?
        {
            connection.request(&Request::Cm(CmCall::SidrDestroy { sidr }))?;
            return Ok(None);
        }
        reply = connection.answer()?.0;
    }
}

fn readable(connection: &Connection, patience: Duration) -> Result<bool> {
    let timeout = Timespec::try_from(patience).context("too long a time")?;
    let mut fds = [PollFd::new(connection, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&timeout))? > 0)
}

fn summary(host: &str, sent: u32, times: &[Duration]) -> String {
    let answered = times.len();
    let lost = 100 * (sent as usize - answered) / sent as usize;
    let mut text = format!(
        "\n--- {host} ping statistics ---\n{sent} sent, {answered} answered, {lost}% lost\n"
    );
    if answered > 0 {
        let all: Vec<f64> = times.iter().map(|time| ms(*time)).collect();
        let mean = all.iter().sum::<f64>() / answered as f64;
        let spread = all.iter().map(|time| (time - mean).powi(2)).sum::<f64>();
        let spread = (spread / answered as f64).sqrt();
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        let most = all.iter().copied().fold(0.0, f64::max);
        text += &format!("rtt min/avg/max/mdev = {least:.3}/{mean:.3}/{most:.3}/{spread:.3} ms\n");
    }
    text
}

/// Searches for the largest MTU whose packets arrive, and returns the line to print.
fn largest(to: IpAddr, link: &LinkInfo, patience: Duration) -> Result<String> {
    let ip = if to.is_ipv4() { 20 } else { 40 };
    let size = |mtu: u32| mtu as usize + ROCE_HEADERS + ip;
    let ours = MTUS.iter().rev().filter(|mtu| **mtu <= link.active_mtu);
    for mtu in ours {
        if probe_path(to, size(*mtu), patience)? == Passage::Arrived {
            let bytes = size(*mtu);
            let note = match *mtu == link.active_mtu {
                true => "the MTU of this link".into(),
                false => format!(
                    "larger ones do not, but the MTU of this link is {}: \
                     run `ferroce link set {} mtu {mtu}`",
                    link.active_mtu, link.name
                ),
            };
            return Ok(format!(
                "mtu {mtu}: IP packets of {bytes} bytes arrive; {note}\n"
            ));
        }
    }
    Ok(format!(
        "mtu unknown: {to} sends no ICMP answer for a closed port; the MTU of this link is {}\n",
        link.active_mtu
    ))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[allow(clippy::disallowed_methods)] // measuring time is the purpose of this command
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_has_the_format_of_ping() {
        let times = [1, 3].map(Duration::from_millis);
        let text = summary("host", 4, &times);
        assert!(text.contains("4 sent, 2 answered, 50% lost\n"), "{text}");
        assert!(text.ends_with("= 1.000/2.000/3.000/1.000 ms\n"), "{text}");
        assert!(!summary("host", 1, &[]).contains("rtt"));
    }
}
