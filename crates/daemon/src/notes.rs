//! Writing down what the next ferroced must know, and reading what the last one wrote;
//! and writing what programs want to read.

use crate::owner::Owner;
use crate::server::Server;
use crate::state::{SavedLink, State};
use crate::sysfs::{self, Subject};

impl Server {
    /// Writes everything down. Called after each change, before anybody is told.
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
            tracing::error!(path = %path.display(), %error, "a restart will not go unnoticed");
        }
    }

    /// Brings counters up to date for those who are about to read them: they wait until
    /// their connections are closed.
    pub(crate) fn serve_readers(&mut self) {
        let mut waiting = Vec::new();
        while let Ok(reader) = self.readers.accept() {
            waiting.push(reader);
        }
        if !waiting.is_empty() {
            self.show();
        }
    }

    /// Brings the files up to date that look like those of sysfs.
    fn show(&mut self) {
        let subjects = self.links.iter().map(|link| Subject {
            link: &link.info,
            counters: self.counted_on(link),
        });
        let files = sysfs::files(subjects);
        if let Err(error) = self.tree.update(files) {
            tracing::warn!(%error, "programs that look into sysfs may not find their device");
        }
    }

    /// Goes on where another ferroced stopped.
    pub(crate) fn restore(&mut self, state: State) {
        self.links.begin_at(state.next_index);
        for link in state.links {
            self.links.restore(link, &self.netdevs);
        }
        for link in self.links.iter() {
            self.connections.update_link(&link.info);
        }
        for saved in state.owners {
            let id = self.new_id();
            self.watch_owner(id, Owner::restored(saved));
        }
        // Who wants to connect is answered, be it with a no.
        if !self.links.is_empty()
            && let Err(refusal) = self.need_port()
        {
            tracing::warn!("{refusal}");
        }
        self.save();
    }
}
