//! Parser for the words after `link add` and `link set`: a name, then pairs of a key and a
//! value, as in iproute2.

use anyhow::{Context, Result, bail};
use ferroce_control::link::{MAX_SPEED, MTUS};
use ferroce_control::{LinkConfig, Request, check_name};

const USAGE: &str = "ferroce link add NAME type rxe|siw netdev IF \
                     [mtu N] [crc on|off] [lids on|off] [patience SECONDS] [speed N] \
                     [local on|off] [strict on|error|off] [profile mlx5|efa|rxe|off]";

/// Parses the words after `link add`.
pub(crate) fn parse(words: &[String]) -> Result<LinkConfig> {
    let (name, pairs) = words
        .split_first()
        .context("the name of the link is missing")?;
    check_name(name)?;
    let (mut kind, mut netdev, mut mtu) = (None, None, None);
    let (mut crc, mut lids, mut patience, mut speed) = (None, None, None, None);
    let (mut local, mut strict, mut profile) = (None, None, None);
    for pair in pairs.chunks(2) {
        let [key, value] = pair else {
            bail!("the value of `{}` is missing; usage: {USAGE}", pair[0]);
        };
        let seen = match key.as_str() {
            "type" => kind.replace(value.clone()).is_some(),
            "netdev" => netdev.replace(value.clone()).is_some(),
            "mtu" => mtu.replace(number(value)?).is_some(),
            "crc" => crc.replace(switch(key, value)?).is_some(),
            "lids" => lids.replace(switch(key, value)?).is_some(),
            "patience" => patience.replace(seconds(value)?).is_some(),
            "speed" => speed.replace(megabits(value)?).is_some(),
            "local" => local.replace(switch(key, value)?).is_some(),
            "strict" => strict.replace(mode(value)?).is_some(),
            "profile" => profile.replace(profile_name(value)?).is_some(),
            other => bail!("unknown word `{other}`; usage: {USAGE}"),
        };
        if seen {
            bail!("`{key}` is given twice; remove one of them");
        }
    }
    let kind = kind.with_context(|| format!("`type` is missing; usage: {USAGE}"))?;
    Ok(LinkConfig {
        name: name.clone(),
        netdev: netdev.with_context(|| format!("`netdev` is missing; usage: {USAGE}"))?,
        mtu,
        // siw asks for no CRCs: TCP has a checksum.
        crc: crc.unwrap_or(kind != "siw"),
        local: local.unwrap_or(true),
        kind,
        lids: lids.unwrap_or(false),
        patience: patience.unwrap_or(0),
        speed: speed.filter(|speed| *speed > 0),
        strict: unless_off(strict),
        profile: unless_off(profile),
    })
}

/// Parses the words after `link set`.
pub(crate) fn parse_set(words: &[String]) -> Result<Vec<Request>> {
    let usage = "ferroce link set NAME [name NEW] [mtu N] [crc on|off] [lids on|off] \
                 [patience SECONDS] [speed N] [local on|off] [strict on|error|off] \
                 [profile mlx5|efa|rxe|off] [faults 'FAULTS'|off]";
    let (name, pairs) = words
        .split_first()
        .context("the name of the link is missing")?;
    let mut faults = None;
    let (mut rename, mut mtu, mut crc) = (None, None, None);
    let (mut lids, mut patience, mut speed, mut local) = (None, None, None, None);
    let (mut strict, mut profile) = (None, None);
    for pair in pairs.chunks(2) {
        match pair {
            [key, value] if key == "name" => rename = Some(value.clone()),
            [key, value] if key == "mtu" => mtu = Some(number(value)?),
            [key, value] if key == "crc" => crc = Some(switch(key, value)?),
            [key, value] if key == "lids" => lids = Some(switch(key, value)?),
            [key, value] if key == "patience" => patience = Some(seconds(value)?),
            [key, value] if key == "speed" => speed = Some(megabits(value)?),
            [key, value] if key == "local" => local = Some(switch(key, value)?),
            [key, value] if key == "strict" => strict = Some(mode(value)?),
            [key, value] if key == "profile" => profile = Some(profile_name(value)?),
            [key, value] if key == "faults" => faults = Some(checked_faults(value)?),
            [key, _] => bail!("unknown word `{key}`; usage: {usage}"),
            _ => bail!("the value of `{}` is missing; usage: {usage}", pair[0]),
        }
    }
    let faults = faults.map(|faults| Request::LinkFaults {
        name: name.clone(),
        faults,
    });
    let mut requests: Vec<Request> = faults.into_iter().collect();
    let is_only = pairs.len() == 2 && !requests.is_empty();
    if !is_only {
        requests.push(Request::LinkSet {
            name: name.clone(),
            rename,
            mtu,
            crc,
            lids,
            patience,
            speed,
            local,
            strict,
            profile,
        });
    }
    Ok(requests)
}

/// Checks faults before ferroced gets them; `off` ends them.
fn checked_faults(value: &str) -> Result<String> {
    if value == "off" {
        return Ok(String::new());
    }
    let plan = ferroce_faults::Plan::parse(value)?;
    if plan.is_empty() {
        bail!("the faults are empty; `faults off` ends those in force");
    }
    Ok(plan.to_string())
}

/// Checks the mode of strict checks.
fn mode(value: &str) -> Result<String> {
    Ok(value.parse::<ferroce_strict::Mode>()?.to_string())
}

/// Checks the name of a profile.
fn profile_name(value: &str) -> Result<String> {
    ferroce_strict::Profile::named(value)?;
    Ok(value.to_owned())
}

fn unless_off(word: Option<String>) -> String {
    word.filter(|word| word != "off").unwrap_or_default()
}

fn number(value: &str) -> Result<u32> {
    let known = MTUS.map(|mtu| mtu.to_string()).join(", ");
    let number = value.parse().ok();
    number.with_context(|| format!("mtu `{value}` is not one of {known}"))
}

fn seconds(value: &str) -> Result<u32> {
    let number = value.parse().ok();
    number.with_context(|| format!("patience `{value}` is not a number of seconds"))
}

/// Parses a speed such as `100g`, `2.5g` or `100m`. Returns Mb/s.
fn megabits(value: &str) -> Result<u32> {
    let (number, unit) = match value.strip_suffix(['g', 'G']) {
        Some(number) => (number, 1000.0),
        None => (value.trim_end_matches(['m', 'M']), 1.0),
    };
    let speed = number.parse().map(|number: f64| number * unit).ok();
    let fits = |speed: &f64| speed.fract() == 0.0 && (0.0..=f64::from(MAX_SPEED)).contains(speed);
    // A number with a fraction of Mb/s has been refused.
    let speed = speed.filter(fits).map(|speed| speed as u32);
    speed.with_context(|| {
        let most = MAX_SPEED / 1000;
        format!("speed `{value}` is not a speed such as 100g, 2.5g or 100m, at most {most}g")
    })
}

fn switch(key: &str, value: &str) -> Result<bool> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        other => bail!("{key} `{other}` is not valid; use `on` or `off`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<LinkConfig> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        parse(&words)
    }

    #[test]
    fn syntax_of_guides_is_accepted() {
        let config = parsed("rxe_ens3 type rxe netdev ens3").unwrap();
        assert_eq!(
            (config.name, config.kind),
            ("rxe_ens3".into(), "rxe".into())
        );
        assert_eq!(
            (config.netdev, config.mtu, config.crc),
            ("ens3".into(), None, true)
        );
    }

    #[test]
    fn keys_may_come_in_any_order() {
        let config = parsed("r crc off mtu 1024 netdev lo lids on type rxe").unwrap();
        assert_eq!(
            (config.mtu, config.crc, config.lids),
            (Some(1024), false, true)
        );
        assert_eq!(config.patience, 0);
        let config = parsed("r type rxe netdev lo patience 60").unwrap();
        assert_eq!(config.patience, 60);
        assert!(!parsed("r type rxe netdev lo").unwrap().lids);
    }

    #[test]
    fn strict_and_profile_are_off_unless_named() {
        let config = parsed("r type rxe netdev lo strict on profile mlx5").unwrap();
        assert_eq!((&*config.strict, &*config.profile), ("on", "mlx5"));
        let config = parsed("r type rxe netdev lo strict off profile off").unwrap();
        assert_eq!((&*config.strict, &*config.profile), ("", ""));
    }

    #[test]
    fn speed_has_a_unit() {
        for (value, mbps) in [
            ("100g", 100_000),
            ("2.5G", 2500),
            ("100m", 100),
            ("40000", 40_000),
        ] {
            let config = parsed(&format!("r type rxe netdev lo speed {value}")).unwrap();
            assert_eq!(config.speed, Some(mbps), "{value}");
        }
        let config = parsed("r type rxe netdev lo speed 0").unwrap();
        assert_eq!(config.speed, None, "the netdev's");
    }

    #[test]
    fn errors_name_the_mistake() {
        for (line, complaint) in [
            ("", "the name of the link is missing"),
            ("rxe0 netdev lo", "`type` is missing"),
            ("rxe0 type rxe", "`netdev` is missing"),
            ("rxe0 type rxe netdev", "the value of `netdev` is missing"),
            (
                "rxe0 type rxe netdev lo mtu big",
                "mtu `big` is not one of 256, 512, 1024, 2048, 4096",
            ),
            (
                "rxe0 type rxe netdev lo crc maybe",
                "crc `maybe` is not valid; use `on` or `off`",
            ),
            (
                "rxe0 type rxe netdev lo patience long",
                "patience `long` is not a number of seconds",
            ),
            (
                "rxe0 type rxe netdev lo lids maybe",
                "lids `maybe` is not valid; use `on` or `off`",
            ),
            ("rxe0 type rxe netdev lo colour 9", "unknown word `colour`"),
            (
                "rxe0 type rxe netdev lo speed 800g",
                "speed `800g` is not a speed such as 100g, 2.5g or 100m, at most 400g",
            ),
            (
                "rxe0 type rxe netdev lo strict yes",
                "strict `yes` is not valid; use `on`, `error` or `off`",
            ),
            (
                "rxe0 type rxe netdev lo profile cx9",
                "profile `cx9` is not known; use `mlx5`, `efa`, `rxe` or `off`",
            ),
            ("rxe0 type rxe netdev lo speed fast", "speed `fast` is not"),
            (
                "rxe0 type rxe netdev lo netdev eth0",
                "`netdev` is given twice",
            ),
            ("a/b type rxe netdev lo", "link name `a/b` is not valid"),
        ] {
            let error = format!("{:#}", parsed(line).unwrap_err());
            assert!(error.contains(complaint), "{line}: {error}");
        }
    }
}
