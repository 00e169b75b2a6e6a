//! Ownership of connections and SIDR requests, which follow the same rules.

use std::collections::{BTreeMap, BTreeSet};

use ferroce_cm::{CallError, Cm, ConnId, SidrId};
use ferroce_control::CmId;

use super::calls::refused;
use super::program::{Listening, Program};
use super::{Connections, LinkSide, Owned};
use crate::client::ClientId;
use crate::refusal::Refusal;

/// The id of an object that belongs to a program.
pub(super) trait Name: Copy + Ord {
    /// Returns all objects on a link, with their owners.
    fn on(side: &mut LinkSide) -> &mut BTreeMap<Self, Owned>;
    /// Returns the objects of a program.
    fn of(program: &mut Program) -> &mut BTreeSet<CmId<Self>>;
    /// Returns the objects that wait at a port.
    fn waiting(listening: &mut Listening) -> &mut BTreeSet<CmId<Self>>;
    /// Returns the refusal for a program that does not own the object.
    fn unknown() -> Refusal;
}

/// Implements [`Name`] for objects that all tables keep in a field of the same name.
macro_rules! kept {
    ($name:ty, $field:ident, $unknown:expr) => {
        impl Name for $name {
            fn on(side: &mut LinkSide) -> &mut BTreeMap<$name, Owned> {
                &mut side.$field
            }

            fn of(program: &mut Program) -> &mut BTreeSet<CmId<$name>> {
                &mut program.$field
            }

            fn waiting(listening: &mut Listening) -> &mut BTreeSet<CmId<$name>> {
                &mut listening.$field
            }

            fn unknown() -> Refusal {
                $unknown
            }
        }
    };
}

kept!(ConnId, connections, refused(CallError::Unknown));
kept!(
    SidrId,
    sidr_requests,
    Refusal::new(libc::ENOENT, "this program has no such SIDR request")
);

impl Connections {
    /// Calls `work` with an object that the program owns.
    pub(super) fn with<N: Name, T>(
        &mut self,
        client: ClientId,
        name: CmId<N>,
        work: impl FnOnce(&mut Cm, N) -> Result<T, CallError>,
    ) -> Result<T, Refusal> {
        let side = self.links.get_mut(&name.link).ok_or_else(N::unknown)?;
        match N::on(side).get(&name.id) {
            Some(owned) if owned.client == client => {}
            _ => return Err(N::unknown()),
        }
        work(&mut side.cm, name.id).map_err(refused)
    }

    /// Marks a request as taken by its program.
    pub(super) fn take<N: Name>(&mut self, name: CmId<N>) {
        let side = self.links.get_mut(&name.link);
        let owned = side.and_then(|side| N::on(side).get_mut(&name.id));
        let Some(owned) = owned else { return };
        if let Some(port) = owned.waits_at.take()
            && let Some(program) = self.programs.get_mut(&owned.client)
            && let Some(listening) = program.listening(port)
        {
            N::waiting(listening).remove(&name);
        }
    }

    /// Removes an object from its program.
    pub(super) fn forget<N: Name>(&mut self, name: CmId<N>) {
        self.take(name);
        let side = self.links.get_mut(&name.link);
        if let Some(owned) = side.and_then(|side| N::on(side).remove(&name.id))
            && let Some(program) = self.programs.get_mut(&owned.client)
        {
            N::of(program).remove(&name);
        }
    }
}
