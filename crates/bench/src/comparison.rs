//! Comparison of two workloads, measured alternately.

use anyhow::Result;

use crate::traffic::{Cost, MESSAGES};

/// The cost of a workload and of its reference, in nanoseconds per message. All values
/// are medians over the rounds, except `fastest`.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Figures {
    /// Cost of the workload.
    pub ns: f64,
    /// Cost of the workload in the fastest tenth of the rounds, as on an idle machine.
    pub fastest: f64,
    /// Cost of the reference.
    pub against: f64,
    /// Workload divided by reference, in each round.
    pub ratio: f64,
}

/// Selects a part of a [`Cost`].
pub(crate) type Part = fn(Cost) -> u64;

/// Runs `a` and `b` alternately, `exchanges` at a time, for `rounds` rounds. Returns
/// figures for each of the `parts`.
pub fn measure_alternately<const N: usize>(
    rounds: usize,
    exchanges: usize,
    mut a: impl FnMut() -> Result<Cost>,
    mut b: impl FnMut() -> Result<Cost>,
    parts: [fn(Cost) -> u64; N],
) -> Result<[Figures; N]> {
    let many = |run: &mut dyn FnMut() -> Result<Cost>| -> Result<Cost> {
        let mut sum = Cost::default();
        for _ in 0..exchanges {
            sum += run()?;
        }
        Ok(sum)
    };
    // Warm up caches, branch predictors and buffers.
    many(&mut a)?;
    many(&mut b)?;
    let mut costs = Vec::with_capacity(rounds);
    for round in 0..rounds {
        // Alternate the order, so that neither always runs after the other.
        costs.push(if round % 2 == 0 {
            (many(&mut a)?, many(&mut b)?)
        } else {
            let b = many(&mut b)?;
            (many(&mut a)?, b)
        });
    }
    let messages = (exchanges * MESSAGES) as f64;
    Ok(parts.map(|part| {
        let each = |pick: fn(f64, f64) -> f64| {
            let pairs = costs.iter();
            pairs.map(move |&(a, b)| pick(part(a) as f64, part(b) as f64))
        };
        Figures {
            ns: median(each(|a, _| a)) / messages,
            fastest: quantile(each(|a, _| a), 0.1) / messages,
            against: median(each(|_, b| b)) / messages,
            ratio: median(each(|a, b| a / b.max(1.0))),
        }
    }))
}

/// Returns the median; zero if there are no values.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// Returns the quantile at `part` (0 to 1); zero if there are no values.
pub(crate) fn quantile(values: impl Iterator<Item = f64>, part: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let at = (last as f64 * part).round() as usize;
    values.get(at).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_ignores_outliers() {
        assert_eq!(median([3.0, 1.0, 1e9].into_iter()), 3.0);
        assert_eq!(quantile((0..101).rev().map(f64::from), 0.1), 10.0);
        assert_eq!(median([].into_iter()), 0.0);
    }

    #[test]
    fn figures_are_per_message_and_compare_round_by_round() {
        let cost = |ns| Cost {
            sender: ns * MESSAGES as u64,
            receiver: 0,
        };
        let parts: [Part; 2] = [|c| c.sender, Cost::both];
        let [sender, both] =
            measure_alternately(5, 3, || Ok(cost(300)), || Ok(cost(200)), parts).unwrap();
        assert_eq!(
            (sender.ns, sender.against, sender.ratio),
            (300.0, 200.0, 1.5)
        );
        assert_eq!(sender, both);
    }
}
