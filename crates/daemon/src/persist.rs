//! Saves and restores the state, and updates the mirror of sysfs.

use crate::owner::Owner;
use crate::server::Server;
use crate::state::{SavedLink, State};
use crate::sysfs::{self, Subject};

impl Server {
    /// Writes the state file and the mirror of sysfs. Called after each change, before clients
    /// are notified.
    pub(crate) fn save(&mut self) {
        self.show();
        let links = self.links.iter().map(|link| SavedLink {
            config: link.config.clone(),
            index: link.info.index,
            ifindex: link.ifindex,
            gids: link.gids.clone(),
            totals: link
                .totals
                .named()
                .map(|(n, v)| (n.to_owned(), v))
                .collect(),
            faults: link.info.faults.clone(),
        });
        let owners = self.owners.values().map(Owner::saved);
        let state = State::new(
            self.place.clone(),
            self.links.next_index(),
            links.collect(),
            owners.collect(),
        );
        let path = self.lock.state_file();
        if let Err(error) = state.save(&path) {
            tracing::error!(path = %path.display(), %error, "cannot write the state file; a restart of ferroced would lose changes");
        }
    }

    /// Updates the counters in the mirror of sysfs. The readers wait until their connections
    /// are closed.
    pub(crate) fn serve_readers(&mut self) {
        let mut waiting = Vec::new();
        while let Ok(reader) = self.readers.accept() {
            waiting.push(reader);
        }
        if !waiting.is_empty() {
            self.show();
        }
    }

    /// Updates the mirror of sysfs.
    fn show(&mut self) {
        let subjects = self.links.iter().map(|link| Subject {
            link: &link.info,
            counters: self.counted_on(link),
        });
        let files = sysfs::files(subjects);
        if let Err(error) = self.tree.update(files) {
            tracing::warn!(%error, "cannot update the mirror of sysfs; programs that read sysfs may not find their device");
        }
    }

    /// Restores the state of an earlier ferroced.
    pub(crate) fn restore(&mut self, state: State) {
        self.links.begin_at(state.next_index);
        for link in state.links {
            self.cm_faults.set_link(link.index, &link.faults);
            self.links.restore(link, &self.netdevs);
        }
        for link in self.links.iter() {
            self.connections.update_link(&link.info);
        }
        for saved in state.owners {
            let id = self.new_id();
            let owner = Owner::restored(saved);
            self.restore_stream_slots(id, &owner);
            self.watch_owner(id, owner);
        }
        self.release_dead_streams();
        // With slot 0 ferroced answers connection requests, if only with a REJ.
        if let Err(refusal) = self.need_port() {
            tracing::warn!("{refusal}");
        }
        self.save();
    }
}
