//! The filter: which events are written.

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};

/// The environment variable that holds the filter.
pub const VARIABLE: &str = "FERROCE_LOG";

/// The targets of Ferroce's events begin with this; they are names of modules.
const TARGETS: &str = "ferroce";

/// A part of `FERROCE_LOG` that is not a directive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "FERROCE_LOG: `{0}` is not a level (off, error, warn, info, debug, trace) \
     nor MODULE=LEVEL with a module of Ferroce (for example ferroce_device=debug)"
)]
pub struct BadDirective(pub String);

/// The level of each module: `warn`, `ferroce_net=debug`, or several with commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// The level of modules that no directive names.
    rest: LevelFilter,
    /// Modules with a level of their own, the longest name first.
    modules: Vec<(String, LevelFilter)>,
}

impl Filter {
    /// Selects all events up to a level, of all modules.
    #[must_use]
    pub fn level(level: LevelFilter) -> Filter {
        Filter {
            rest: level,
            modules: Vec::new(),
        }
    }

    /// Reads directives: a level, `MODULE=LEVEL`, or `MODULE` alone for all its events. Modules
    /// that no directive names have no messages, unless a level stands alone.
    ///
    /// # Errors
    /// If a part is none of these.
    pub fn parse(text: &str) -> Result<Filter, BadDirective> {
        let mut filter = Filter::level(LevelFilter::OFF);
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let bad = || BadDirective(part.to_owned());
            match part.split_once('=') {
                None if part.starts_with(TARGETS) => filter.add(part, LevelFilter::TRACE),
                None => filter.rest = part.parse().map_err(|_| bad())?,
                Some((module, level)) if module.starts_with(TARGETS) => {
                    filter.add(module, level.parse().map_err(|_| bad())?);
                }
                Some(_) => return Err(bad()),
            }
        }
        // The longest name decides.
        filter
            .modules
            .sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Ok(filter)
    }

    /// Adds a directive. Of two for one module the last counts.
    fn add(&mut self, module: &str, level: LevelFilter) {
        self.modules.retain(|(name, _)| name != module);
        self.modules.push((module.to_owned(), level));
    }

    /// The most verbose level that any module has.
    pub(crate) fn max_level(&self) -> LevelFilter {
        let modules = self.modules.iter().map(|(_, level)| *level);
        modules.fold(self.rest, LevelFilter::max)
    }

    /// Whether an event is written.
    pub(crate) fn selects(&self, metadata: &Metadata<'_>) -> bool {
        self.selects_from(metadata.target(), *metadata.level())
    }

    fn selects_from(&self, target: &str, level: Level) -> bool {
        let named = self
            .modules
            .iter()
            .find(|(name, _)| target.starts_with(name));
        level <= named.map_or(self.rest, |(_, level)| *level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(filter: &str, target: &str) -> Vec<Level> {
        let filter = Filter::parse(filter).expect("a valid filter");
        [
            Level::ERROR,
            Level::WARN,
            Level::INFO,
            Level::DEBUG,
            Level::TRACE,
        ]
        .into_iter()
        .filter(|level| filter.selects_from(target, *level))
        .collect()
    }

    #[test]
    fn a_level_selects_it_and_the_more_severe_ones() {
        assert_eq!(selected("warn", "ferroce_net"), [Level::ERROR, Level::WARN]);
        assert_eq!(selected("Error", "ferroce_net"), [Level::ERROR]);
        assert_eq!(selected("debug", "ferroce_net").len(), 4);
        assert!(selected("off", "ferroce_net").is_empty());
        assert!(selected("", "ferroce_net").is_empty());
    }

    #[test]
    fn the_longest_module_name_decides() {
        let filter = "warn,ferroce_device=off,ferroce_device::shard=info,";
        assert_eq!(selected(filter, "ferroce_net").len(), 2);
        assert!(selected(filter, "ferroce_device::progress").is_empty());
        assert_eq!(selected(filter, "ferroce_device::shard::turn").len(), 3);
        assert_eq!(selected("ferroce_net", "ferroce_net::sender").len(), 5);
        assert!(selected("ferroce_net", "ferroce_device").is_empty());
        let twice = "ferroce_net=off,ferroce_net=warn";
        assert_eq!(selected(twice, "ferroce_net").len(), 2);
        let max = Filter::parse(filter).expect("a valid filter").max_level();
        assert_eq!(max, LevelFilter::INFO);
    }

    #[test]
    fn a_wrong_directive_is_named_with_the_remedy() {
        for wrong in ["debgu", "net=debug", "ferroce_net=loud", "[span]=info"] {
            let error = Filter::parse(&format!("info,{wrong}")).expect_err(wrong);
            assert_eq!(error, BadDirective(wrong.to_owned()));
            let said = error.to_string();
            assert!(said.contains(wrong) && said.contains("debug"), "{said}");
        }
    }
}
