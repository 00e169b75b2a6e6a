//! The number of a device's shards, and their engines.

use std::sync::Arc;

use ferroce_control::LinkInfo;
use ferroce_net::qpns_of_slot;
use ferroce_roce::{Config, Counters, Engine, Regions};

use crate::device::port_mtu;
use crate::error::Error;
use crate::free_cores::processors;

/// Processors for each shard: its thread, the program's, and those of a peer.
const PROCESSORS_PER_SHARD: usize = 4;
/// Most shards by default. Each takes one of the 255 slots of the network namespace.
const MOST_SHARDS: usize = 4;

/// Returns the number of shards to ask for.
pub(crate) fn wanted_shards() -> u8 {
    let chosen = std::env::var("FERROCE_SHARDS").ok();
    let chosen = chosen.and_then(|number| number.parse().ok());
    chosen
        .unwrap_or_else(|| (processors() / PROCESSORS_PER_SHARD).min(MOST_SHARDS) as u8)
        .clamp(1, ferroce_control::MAX_SHARDS)
}

/// Creates the engine of a slot.
pub(crate) fn new_engine(
    link: &LinkInfo,
    slot: u8,
    counters: &Arc<Counters>,
    regions: &Arc<Regions>,
) -> Result<Engine, Error> {
    let config = Config {
        qpns: qpns_of_slot(slot),
        skip_qpns: random()?,
        port_mtu: port_mtu(link),
        check_icrc: link.crc,
        patience_ns: u64::from(link.patience) * 1_000_000_000,
        ..Config::default()
    };
    Ok(Engine::new(
        config,
        Arc::clone(regions),
        Arc::clone(counters),
    ))
}

/// Returns random bytes for memory keys.
pub(crate) fn seed() -> Result<[u8; 32], Error> {
    let mut seed = [0; 32];
    fill(&mut seed)?;
    Ok(seed)
}

fn random() -> Result<u32, Error> {
    let mut number = [0; 4];
    fill(&mut number)?;
    Ok(u32::from_ne_bytes(number))
}

fn fill(bytes: &mut [u8]) -> Result<(), Error> {
    rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::system("random numbers")(e.into()))?;
    Ok(())
}
