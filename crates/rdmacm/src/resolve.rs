//! Addresses, ports and routes: bind, resolve, listen.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use ferroce_cm::Address;
use ferroce_cm::ports::Host;
use ferroce_control::{CmAnswer, CmCall};

use crate::address::{any, host, with_port};
use crate::channel::ChannelEvent;
use crate::client::ControlClient;
use crate::devices::{self, LinkDevice};
use crate::error::{Error, ErrorKind, no_port, unexpected_answer};
use crate::id::{Binding, Id, Port, Shared, State};
use crate::iwarp::{self, TcpListener};
use crate::lookup;
use crate::neighbour::Discovery;
use crate::path::Path;

/// Time that librdmacm allows for resolving an address.
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Largest backlog, as in the kernel.
const MAX_BACKLOG: u32 = 1024;

impl Id {
    /// Binds to a local address and port; port 0 selects an ephemeral port.
    pub fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        let id = self.usable()?;
        id.advance(State::Idle, State::Bound)?;
        let bound = bind(id, address);
        if bound.is_err() {
            id.inner().state = State::Idle;
        }
        bound
    }

    /// Gives an id that is bound to a loopback address the device of the link there. As in
    /// the kernel, binding alone does not; datagram rsockets need it, because no connection
    /// brings them a device.
    pub fn adopt_device(&self) -> Result<(), Error> {
        let id = self.usable()?;
        let source = id.inner().port.ok_or_else(no_port)?.source;
        if source.ip.is_loopback() {
            let device = devices::by_address(source)?;
            id.inner().device = Some(device);
        }
        Ok(())
    }

    /// Resolves the address of a peer, from `source` if it is given. The event
    /// [`AddressResolved`](crate::EventKind::AddressResolved) follows, or
    /// [`AddressError`](crate::EventKind::AddressError) at the latest after `timeout`.
    pub fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error> {
        resolve(self.usable()?, source, destination, timeout)
    }

    /// Resolves the route to the peer. The event
    /// [`RouteResolved`](crate::EventKind::RouteResolved) follows.
    pub fn resolve_route(&self) -> Result<(), Error> {
        let id = self.usable()?;
        id.advance(State::AddressResolved, State::RouteResolved)?;
        let path = Path::of(&id.inner());
        let event = match path {
            Ok(path) => {
                id.inner().path = Some(path);
                ChannelEvent::RouteResolved
            }
            Err(error) => {
                id.inner().state = State::AddressResolved;
                ChannelEvent::RouteError(error.errno())
            }
        };
        id.post(event);
        Ok(())
    }

    /// Listens on the bound port; an id that is not bound gets an ephemeral one. `backlog`
    /// requests may wait: 0, and numbers above 1024, stand for 1024.
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        let id = self.usable()?;
        // Not in the condition: the lock would last through the call.
        let idle = id.inner().state == State::Idle;
        if idle {
            self.bind(SocketAddr::from(([0, 0, 0, 0], 0)))?;
        }
        id.advance(State::Bound, State::Listen)?;
        let backlog = match backlog {
            some @ 1..MAX_BACKLOG => some,
            _ => MAX_BACKLOG,
        };
        let call = |generation| {
            let port = id.inner().port.ok_or_else(no_port)?;
            Ok(CmCall::Listen {
                port: port.handle_on(generation)?,
                backlog,
            })
        };
        let listening = listen_for_streams(id, backlog).and_then(|listener| {
            ControlClient::get()?.call_until_answered(call, None)?;
            Ok(listener)
        });
        let source = {
            let mut inner = id.inner();
            match &listening {
                Ok(_) => inner.backlog = Some(backlog),
                Err(_) => inner.state = State::Bound,
            }
            inner.port.map(|port| port.source)
        };
        let listener = listening?;
        // After the Listen: qperf tells its client the port before it listens, and opening
        // devices takes milliseconds, in which ferroced would reject the client. A request
        // for a device that is not open yet waits until it is.
        if let Some(source) = source
            && let Err(error) = devices::open_for_listener(source)
        {
            tracing::debug!("cannot open the devices of a listener: {error}");
        }
        id.inner().tcp_listener = listener;
        Ok(())
    }
}

/// Opens the TCP port of a listener on iWARP links.
fn listen_for_streams(id: &Arc<Shared>, backlog: u32) -> Result<Option<TcpListener>, Error> {
    let port = id.inner().port.ok_or_else(no_port)?;
    iwarp::listen(id, port.source, port.number, backlog)
}

fn bind(id: &Arc<Shared>, address: SocketAddr) -> Result<(), Error> {
    let source = host(address);
    let device = device_of(source)?;
    let port = take_port(id, source, address.port(), None)?;
    let mut inner = id.inner();
    if device.is_some() {
        inner.device = device;
    }
    inner.local = Some(with_port(source, port.number));
    Ok(())
}

/// Returns the device of an address, once packets can be sent from it; None for the wildcard
/// and for loopback addresses. As in the kernel, an id that is bound to a loopback address has
/// no device before it is connected. libfabric relies on it.
fn device_of(source: Host) -> Result<Option<LinkDevice>, Error> {
    if source.ip.is_unspecified() || source.ip.is_loopback() {
        return Ok(None);
    }
    match devices::by_address(source) {
        Ok(device) => {
            device.await_usable(source)?;
            Ok(Some(device))
        }
        Err(error) => {
            lookup::check_local(source)?;
            Err(error)
        }
    }
}

fn take_port(
    id: &Arc<Shared>,
    source: Host,
    number: u16,
    destination: Option<(Host, u16)>,
) -> Result<Port, Error> {
    let options = {
        let mut inner = id.inner();
        inner.binding = Some(Binding {
            source,
            destination,
        });
        inner.chose_port = number != 0;
        inner.options
    };
    let call = |_generation| {
        Ok(CmCall::Bind {
            space: id.space,
            source,
            port: number,
            destination,
            reuse: options.reuse_address,
            af_only: options.af_only,
        })
    };
    match ControlClient::get()?.call_until_answered(call, Some(id))? {
        CmAnswer::Bound { .. } => id.inner().port.ok_or_else(no_port),
        _ => Err(unexpected_answer()),
    }
}

fn resolve(
    id: &Arc<Shared>,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    timeout: Duration,
) -> Result<(), Error> {
    let before = id.inner().state;
    let bound = match before {
        State::Idle => {
            let source = source.unwrap_or(SocketAddr::new(any(destination.ip()), 0));
            if source.is_ipv4() != destination.is_ipv4() {
                return Err(Error::invalid(
                    "source and destination are of different address families",
                ));
            }
            source
        }
        State::Bound => {
            let port = id.inner().port.ok_or_else(no_port)?;
            if port.source.ip.is_ipv4() != destination.is_ipv4() {
                return Err(Error::invalid(
                    "the id is bound to an address of the other address family",
                ));
            }
            with_port(port.source, port.number)
        }
        _ => {
            return Err(Error::invalid(
                "the id has been resolved, listens or is connected",
            ));
        }
    };
    // A source that is not local is refused at once, one without a route by an event.
    device_of(host(bound))?;
    match start_resolving(id, before, bound, destination) {
        Ok(None) => finish(id, true),
        Ok(Some(discovery)) => {
            let client = ControlClient::get()?;
            if let Err(error) = discovery.wait_in_thread(id, client, timeout, finish) {
                tracing::warn!("no neighbour discovery: {error}");
                finish(id, true);
            }
        }
        Err(Refusal::Now(error)) => return Err(error),
        Err(Refusal::Event(error)) => {
            tracing::debug!("address not resolved: {error}");
            id.post(ChannelEvent::AddressError(error.errno()));
        }
    }
    Ok(())
}

/// Ends the resolution of an address. After a failure the id may try again.
fn finish(id: &Arc<Shared>, found: bool) {
    let (state, event) = match found {
        true => (State::AddressResolved, ChannelEvent::AddressResolved),
        false => (State::Bound, ChannelEvent::AddressError(libc::ETIMEDOUT)),
    };
    id.inner().state = state;
    id.post(event);
}

/// A failure, reported by the call or by an event.
enum Refusal {
    Now(Error),
    Event(Error),
}

fn start_resolving(
    id: &Arc<Shared>,
    before: State,
    bound: SocketAddr,
    destination: SocketAddr,
) -> Result<Option<Discovery>, Refusal> {
    let mut to = host(destination);
    if to.ip.is_unspecified() {
        to = devices::first_address(to.ip.is_ipv4()).map_err(Refusal::Event)?;
    }
    let destination = with_port(to, destination.port());
    let source = source_for(destination, host(bound)).map_err(Refusal::Event)?;
    let device = devices::by_address(source).map_err(Refusal::Event)?;
    let route = (to, destination.port());
    let port = match before {
        State::Idle => take_port(id, source, bound.port(), Some(route)).map_err(Refusal::Now)?,
        _ => set_route(id, source, route).map_err(Refusal::Now)?,
    };
    {
        let mut inner = id.inner();
        inner.state = State::Resolving;
        inner.address = Some(Address {
            local: source.ip,
            remote: to.ip,
        });
        inner.device = Some(device);
        inner.local = Some(with_port(source, port.number));
        inner.peer = Some(destination);
    }
    let needs_no_discovery =
        to.ip.is_multicast() || to.ip == source.ip || lookup::check_local(to).is_ok();
    Ok(match needs_no_discovery {
        true => None,
        false => Discovery::start(source, destination),
    })
}

/// Returns the address from which packets to `destination` leave. Waits for it if the only
/// addresses are those whose duplicate address detection has not ended.
fn source_for(destination: SocketAddr, bound: Host) -> Result<Host, Error> {
    match lookup::source_for(destination, bound) {
        Err(error)
            if error.kind() == ErrorKind::AddressNotAvailable
                && devices::await_source(destination)? =>
        {
            lookup::source_for(destination, bound)
        }
        found => found,
    }
}

fn set_route(id: &Arc<Shared>, source: Host, destination: (Host, u16)) -> Result<Port, Error> {
    let call = |generation| {
        let port = id.inner().port.ok_or_else(no_port)?;
        Ok(CmCall::SetRoute {
            port: port.handle_on(generation)?,
            source,
            destination,
        })
    };
    ControlClient::get()?.call_until_answered(call, None)?;
    let mut inner = id.inner();
    let port = inner.port.as_mut().ok_or_else(no_port)?;
    port.source = source;
    port.destination = Some(destination);
    Ok(*port)
}
