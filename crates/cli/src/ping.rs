//! `ferroce ping`: is there a RoCE connection manager at the other end?
//!
//! The question is for a service that nobody offers (a SIDR_REQ). Every connection
//! manager, the kernel's as well as ours, answers that it does not know it: that is
//! the answer we want. It needs no queue pair, and leaves nothing behind.

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

/// A service that nobody offers: it lies in no port space of rdma_cm.
const NOBODY: u64 = 0x00f0_f0f0_f0f0_f0f0;
/// The UDP port of RoCEv2.
const ROCE: u16 = 4791;
/// Headers of the longest packet, without those of IP.
const ROCE_HEADERS: usize = 8 + 12 + 16 + 4 + 4;

/// Ask whether a host speaks RoCE, and how soon it answers
#[derive(Debug, Args)]
#[command(
    long_about = "\
Asks the connection manager of a host for a service that does not exist, and measures how soon it \
says so: a Ferroce with a link answers, and so does the kernel's Soft-RoCE or a RoCE NIC. The time \
is that of the whole way through both daemons, not of the network alone. Then it finds out how \
large packets may be, by datagrams to a closed port.

Exit status 0 if there was an answer, 1 if not.",
    after_long_help = "\
EXAMPLES
    ferroce ping 10.0.0.2
    ferroce ping -c 1 -I rxe0 host.example"
)]
pub(crate) struct PingArgs {
    /// Name or address
    host: String,

    /// How many questions
    #[arg(short, long, default_value_t = 4)]
    count: u32,

    /// Seconds between questions
    #[arg(short, long, default_value_t = 0.5)]
    interval: f64,

    /// Seconds to wait for an answer
    #[arg(short = 'W', long, default_value_t = 2.0)]
    timeout: f64,

    /// The link to use, if there are several
    #[arg(short = 'I', long)]
    link: Option<String>,

    /// Do not look for the largest packet
    #[arg(long)]
    no_mtu: bool,
}

impl PingArgs {
    pub(crate) fn run(self) -> Result<()> {
        ensure!(self.count > 0, "at least one question, please");
        let seconds = |value: f64| Duration::try_from_secs_f64(value).ok();
        let interval = seconds(self.interval).context("the interval is not a time")?;
        let timeout = seconds(self.timeout).context("the timeout is not a time")?;
        let to = resolve(&self.host)?;
        let mut connection = daemon::connect()?.context(
            "no ferroced runs here; `ferroce link add rxe0 type rxe netdev IF` starts one",
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
                #[allow(clippy::disallowed_methods)] // a person asked for it
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
                "{to} does not answer: is there a link (`ferroce link`, `rdma link`), and does a \
                 firewall let UDP port {ROCE} through?"
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
        .with_context(|| format!("cannot find host `{host}`"))?;
    let first = all
        .next()
        .with_context(|| format!("host `{host}` has no address"))?;
    Ok(first.ip())
}

/// The link that has the address that packets to there would come from.
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
        // The user says so.
        Some(chosen) if wanted.is_some() => Ok(chosen),
        _ => bail!("packets to {to} come from {from}, and no link has that address"),
    }
}

fn source(to: IpAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    #[allow(clippy::disallowed_methods)] // nothing is sent
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(to, ROCE))?;
    Ok(socket.local_addr()?.ip())
}

/// Asks once; how long the answer took, or none.
fn ask(
    connection: &mut Connection,
    link: u32,
    address: Address,
    timeout: Duration,
) -> Result<Option<Duration>> {
    let request = SidrRequest {
        address,
        service_id: NOBODY,
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

/// The largest RoCE packets that arrive, as far as can be found out.
fn largest(to: IpAddr, link: &LinkInfo, patience: Duration) -> Result<String> {
    let ip = if to.is_ipv4() { 20 } else { 40 };
    let size = |mtu: u32| mtu as usize + ROCE_HEADERS + ip;
    let ours = MTUS.iter().rev().filter(|mtu| **mtu <= link.active_mtu);
    for mtu in ours {
        if probe_path(to, size(*mtu), patience)? == Passage::Arrived {
            let bytes = size(*mtu);
            let note = match *mtu == link.active_mtu {
                true => "all that this link sends".into(),
                false => format!(
                    "this link sends up to {}: say `mtu {mtu}` when you add it",
                    link.active_mtu
                ),
            };
            return Ok(format!(
                "mtu {mtu}: IP packets of {bytes} bytes arrive; {note}\n"
            ));
        }
    }
    Ok(format!(
        "mtu not known: {to} says nothing about datagrams to a closed port; this link sends up to {}\n",
        link.active_mtu
    ))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[allow(clippy::disallowed_methods)] // a tool that tells people how long things took
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_pings() {
        let times = [1, 3].map(Duration::from_millis);
        let text = summary("host", 4, &times);
        assert!(text.contains("4 sent, 2 answered, 50% lost\n"), "{text}");
        assert!(text.ends_with("= 1.000/2.000/3.000/1.000 ms\n"), "{text}");
        assert!(!summary("host", 1, &[]).contains("rtt"));
    }
}
