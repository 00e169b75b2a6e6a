//! The links of the configuration, which ferroced creates as soon as their netdevs permit.
//!
//! A netdev may appear, or get its address, long after ferroced has started. So ferroced
//! retries whenever netdevs change. A link that a user deletes stays deleted until the next
//! start.

use ferroce_control::LinkConfig;

use crate::config::{self, ConfigError};
use crate::server::Server;

impl Server {
    /// Reads the configuration and creates the links that can be created now.
    pub(crate) fn add_configured_links(&mut self) -> Result<(), ConfigError> {
        let path = config::path();
        self.configured_links = config::load(&path)?;
        tracing::info!(path = %path.display(), links = self.configured_links.len(), "configuration read");
        self.add_configured(true);
        Ok(())
    }

    /// Creates the configured links that do not exist yet. With `log`, logs those that must
    /// wait.
    pub(crate) fn add_configured(&mut self, log: bool) {
        for config in std::mem::take(&mut self.configured_links) {
            let LinkConfig { name, netdev, .. } = &config;
            if self.links.iter().any(|link| link.config.name == *name) {
                // The link is from before a restart.
                continue;
            }
            let (name, netdev) = (name.clone(), netdev.clone());
            match self.link_add(config.clone()) {
                Ok(_) => {}
                Err(refusal) => {
                    if log {
                        tracing::info!("link {name} waits for netdev {netdev}: {refusal}");
                    }
                    self.configured_links.push(config);
                }
            }
        }
    }
}
