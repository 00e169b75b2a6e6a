//! Single words of the grammar: times, rates, shares, ordinals.

use crate::random::Chance;

/// Parses a time such as `2ms`, `0.5s`, `80us` or `10ns`. Returns nanoseconds.
pub(crate) fn time(word: &str) -> Option<u64> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((word.strip_suffix(name)?, unit)))?;
    let number: f64 = number.parse().ok()?;
    let ns = number * unit;
    // A day: longer times are a mistake, and sums with them stay far from the end of u64.
    ((0.0..=86_400e9).contains(&ns)).then_some(ns.round() as u64)
}

/// Parses a rate such as `10mbit`, `1.5gbit`, `64kbit` or `8000bit`. Returns bits in a second.
pub(crate) fn rate(word: &str) -> Option<u64> {
    let units = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("bit", 1.0)];
    let lower = word.to_ascii_lowercase();
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((lower.strip_suffix(name)?, unit)))?;
    let bits = number.parse::<f64>().ok()? * unit;
    ((1000.0..=1e12).contains(&bits)).then_some(bits.round() as u64)
}

/// Parses a share such as `1%` or `0.05%`.
pub(crate) fn share(word: &str) -> Option<Chance> {
    let number: f64 = word.strip_suffix('%')?.parse().ok()?;
    ((0.0..=100.0).contains(&number)).then(|| Chance::new(number / 100.0))
}

/// Parses an ordinal such as `1st`, `2nd`, `3rd` or `14th`.
pub(crate) fn ordinal(word: &str) -> Option<u64> {
    let end = word.find(|c: char| !c.is_ascii_digit())?;
    let (number, ending) = word.split_at(end);
    let number: u64 = number.parse().ok()?;
    (number > 0 && matches!(ending, "st" | "nd" | "rd" | "th")).then_some(number)
}

/// Parses a number, decimal or hexadecimal.
pub(crate) fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Returns a number as an ordinal: `3rd`.
pub fn with_ending(number: u64) -> String {
    let ending = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_rates_shares_and_ordinals_have_units() {
        assert_eq!(time("2ms"), Some(2_000_000));
        assert_eq!(time("0.5s"), Some(500_000_000));
        assert_eq!(time("80us"), Some(80_000));
        assert_eq!((time("2"), time("-1ms"), time("1e9s")), (None, None, None));
        assert_eq!(rate("1.5Gbit"), Some(1_500_000_000));
        assert_eq!((rate("10"), rate("0mbit")), (None, None));
        assert_eq!(share("100%"), Some(Chance::CERTAIN));
        assert_eq!((share("101%"), share("1")), (None, None));
        assert_eq!(ordinal("22nd"), Some(22));
        assert_eq!(
            (ordinal("0th"), ordinal("3"), ordinal("x3rd")),
            (None, None, None)
        );
        let endings: Vec<_> = [1, 2, 3, 4, 11, 21, 112].map(with_ending).into();
        assert_eq!(endings.join(" "), "1st 2nd 3rd 4th 11th 21st 112th");
    }
}
