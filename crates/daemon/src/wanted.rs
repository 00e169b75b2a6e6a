//! Links that the configuration names: made at the start, or as soon as they can be.
//!
//! A netdev may come, and get its address, long after ferroced has started: so those
//! that could not be made are tried again whenever netdevs change. A link that
//! somebody deletes stays deleted until the next start.

use ferroce_control::LinkConfig;

use crate::config::{self, ConfigError};
use crate::server::Server;

impl Server {
    /// Reads the configuration, and makes what links can be made.
    pub(crate) fn make_configured(&mut self) -> Result<(), ConfigError> {
        let path = config::path();
        self.wanted = config::load(&path)?;
        tracing::info!(path = %path.display(), links = self.wanted.len(), "configuration read");
        self.make_wanted(true);
        Ok(())
    }

    /// Makes links that could not be made before.
    pub(crate) fn make_wanted(&mut self, aloud: bool) {
        for config in std::mem::take(&mut self.wanted) {
            let LinkConfig { name, netdev, .. } = &config;
            if self.links.iter().any(|link| link.config.name == *name) {
                // From before a restart.
                continue;
            }
            let (name, netdev) = (name.clone(), netdev.clone());
            match self.link_add(config.clone()) {
                Ok(_) => {}
                Err(refusal) => {
                    if aloud {
                        tracing::info!("link {name} waits for netdev {netdev}: {refusal}");
                    }
                    self.wanted.push(config);
                }
            }
        }
    }
}
