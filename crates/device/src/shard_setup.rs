//! The number of a device's shards, and their engines.

use std::sync::Arc;

use ferroce_control::{LinkInfo, MAX_SHARDS};
use ferroce_net::qpns_of_slot;
use ferroce_roce::{Config, Counters, Engine, Regions};

use crate::device::port_mtu;
use crate::error::Error;
use crate::free_cores::processors;

/// Processors for each shard: its thread, the program's, and those of a peer.
const PROCESSORS_PER_SHARD: usize = 4;
/// Most shards by default. Each takes one of the 255 slots of the network namespace.
const MOST_SHARDS: usize = 4;

/// Environment variable with the number of shards.
const VARIABLE: &str = "FERROCE_SHARDS";

/// Returns the number of shards to ask for.
///
/// # Errors
/// If the environment names a number that is not possible.
pub(crate) fn wanted_shards() -> Result<u8, Error> {
    chosen_shards(&std::env::var(VARIABLE).unwrap_or_default())
}

fn chosen_shards(chosen: &str) -> Result<u8, Error> {
    if chosen.is_empty() {
        let shards = (processors() / PROCESSORS_PER_SHARD).clamp(1, MOST_SHARDS);
        return Ok(shards as u8);
    }
    let number = chosen.parse().ok();
    number
        .filter(|number| (1..=MAX_SHARDS).contains(number))
        .ok_or_else(|| {
            let what = format!("{VARIABLE} is `{chosen}`; use a number from 1 to {MAX_SHARDS}");
            let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, what);
            Error::system("number of shards")(error)
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_number_of_shards_is_an_error() {
        assert_eq!(chosen_shards("60").unwrap(), 60);
        assert!(chosen_shards("").unwrap() >= 1);
        for chosen in ["0", "61", "-1", "many"] {
            let error = chosen_shards(chosen).unwrap_err().to_string();
            assert!(error.contains(&format!("`{chosen}`")), "{error}");
        }
    }
}
