//! The group of sockets on UDP port 4791: one member per slot, in slot order.
//!
//! The group grows when a new slot is needed, and never shrinks. Every program holds all
//! sockets through the escrow. So the group outlives ferroced, and a new ferroced adopts it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_control::{CounterPage, CounterValues, CreditPage, SocketEscrow};
use ferroce_net::{BindError, SlotSockets, create_slot};
use ferroce_wire::ROCE_PORT;
use rustix::net::SocketAddrAny;

use crate::refusal::Refusal;
use crate::rival::Rival;
use crate::slots::Slots;

/// The group, and the owners of its slots.
#[derive(Debug)]
pub(crate) struct Group {
    members: Vec<Member>,
    escrow: SocketEscrow,
    credits: CreditPage,
    pub(crate) slots: Slots,
}

#[derive(Debug)]
struct Member {
    sockets: SlotSockets,
    counters: CounterPage,
}

/// Reason why the group cannot be created or extended.
#[derive(Debug)]
pub(crate) enum GroupError {
    /// Programs from before a restart hold the group and have not resumed yet.
    Held(String),
    /// Any other reason.
    Refused(Refusal),
}

impl From<io::Error> for GroupError {
    fn from(error: io::Error) -> GroupError {
        GroupError::Refused(Refusal::system(
            "cannot create the sockets of a slot",
            &error,
        ))
    }
}

impl From<BindError> for GroupError {
    fn from(error: BindError) -> GroupError {
        let message = error.to_string();
        let errno = match &error {
            BindError::WrongPlace { .. } => {
                return match Rival::find() {
                    Some(rival) => {
                        GroupError::Refused(Refusal::new(libc::EADDRINUSE, rival.reason()))
                    }
                    None => GroupError::Held(message),
                };
            }
            BindError::PortTaken { .. } => libc::EADDRINUSE,
            BindError::NoSteering(error) | BindError::Socket { error, .. } => {
                error.raw_os_error().unwrap_or(libc::EIO)
            }
        };
        GroupError::Refused(Refusal { errno, message }.with_remedy())
    }
}

impl Group {
    /// Creates a group with slot 0.
    pub(crate) fn create() -> Result<Group, GroupError> {
        let mut group = Group {
            members: Vec::new(),
            escrow: SocketEscrow::new()?,
            credits: CreditPage::new()?,
            slots: Slots::default(),
        };
        group.grow()?;
        Ok(group)
    }

    /// Takes over the group that a program has kept. At first no slot has an owner.
    ///
    /// # Errors
    /// If the descriptors are not those of a group, or of another version.
    pub(crate) fn adopt(escrow: SocketEscrow, credits: CreditPage) -> io::Result<Group> {
        let mut group = Group {
            members: Vec::new(),
            slots: Slots::default(),
            escrow,
            credits,
        };
        for slot in group.escrow.contents()? {
            check_socket(&slot.v4)?;
            slot.v6.as_ref().map_or(Ok(()), check_socket)?;
            group.members.push(Member {
                sockets: SlotSockets {
                    v4: slot.v4,
                    v6: slot.v6,
                },
                counters: slot.counters,
            });
            group.slots.grow();
        }
        if group.members.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(group)
    }

    /// Adds the next slot.
    pub(crate) fn grow(&mut self) -> Result<(), GroupError> {
        let slot = u8::try_from(self.members.len()).expect("the caller counts slots");
        let counters = CounterPage::new()?;
        let sockets = create_slot(slot)?;
        let fds = (sockets.v4.as_fd(), sockets.v6.as_ref().map(AsFd::as_fd));
        // If this fails, the new sockets close. They are the last of the group, so no
        // other socket moves.
        self.escrow.append(slot, fds, &counters).map_err(|error| {
            let what = format!("cannot put the sockets of slot {slot} into the escrow");
            GroupError::Refused(Refusal::system(&what, &error))
        })?;
        if slot > 0 {
            // No program reads the slot yet.
            sockets.park()?;
        }
        self.members.push(Member { sockets, counters });
        self.slots.grow();
        Ok(())
    }

    /// Prepares a slot for its new owner, and lets it receive packets.
    pub(crate) fn open(&self, slot: u8) -> io::Result<()> {
        let member = self.member(slot);
        // The release of the slot has usually parked it already.
        member.sockets.park()?;
        self.credits.clear(slot)?;
        // A parked socket counts each datagram as dropped: only later ones overflow.
        member.sockets.unpark()?;
        member.counters.clear(member.sockets.dropped())
    }

    /// Closes a slot whose owner has ended: drains its sockets and drops later packets.
    /// Returns the counters of the owner.
    pub(crate) fn close(&self, slot: u8) -> CounterValues {
        let member = self.member(slot);
        let counted = self.counted(slot);
        if let Err(error) = member.sockets.park() {
            tracing::warn!(slot, %error, "cannot drain the sockets of the slot");
        }
        if let Err(error) = self.credits.clear(slot) {
            tracing::warn!(slot, %error, "cannot clear the entry of the slot");
        }
        if let Err(error) = member.counters.clear(member.sockets.dropped()) {
            tracing::warn!(slot, %error, "cannot clear the counters of the slot");
        }
        counted
    }

    /// Returns the counters of a slot's owner, with the overflows of its sockets.
    pub(crate) fn counted(&self, slot: u8) -> CounterValues {
        let member = self.member(slot);
        // The kernel counts overflows, even while the program is stopped.
        let values = member.counters.read(member.sockets.dropped());
        values.unwrap_or_else(|error| {
            tracing::warn!(slot, %error, "cannot read the counters of the slot");
            CounterValues::default()
        })
    }

    /// Returns the sockets of slot 0, which ferroced uses.
    pub(crate) fn sockets_of_slot_0(&self) -> io::Result<SlotSockets> {
        self.member(0).sockets.try_clone()
    }

    /// Returns true if a program's escrow is that of this group.
    pub(crate) fn is_held_by(&self, escrow: &SocketEscrow) -> bool {
        self.escrow.is_same(escrow).unwrap_or(false)
    }

    /// Returns true if the slot has an IPv6 socket.
    pub(crate) fn has_v6(&self, slot: u8) -> bool {
        self.member(slot).sockets.v6.is_some()
    }

    /// Returns the descriptors of a reply to Attach: the escrow, the credit page, then those of
    /// each slot.
    pub(crate) fn descriptors(&self, slots: &[u8]) -> io::Result<Vec<OwnedFd>> {
        let mut fds: Vec<BorrowedFd<'_>> = self.escrow.fds().into();
        fds.push(self.credits.as_fd());
        for member in slots.iter().map(|slot| self.member(*slot)) {
            fds.push(member.sockets.v4.as_fd());
            fds.extend(member.sockets.v6.as_ref().map(AsFd::as_fd));
            fds.push(member.counters.as_fd());
        }
        fds.into_iter().map(|fd| fd.try_clone_to_owned()).collect()
    }

    fn member(&self, slot: u8) -> &Member {
        &self.members[usize::from(slot)]
    }
}

/// Checks that a descriptor from a program is a socket of port 4791.
fn check_socket(fd: &OwnedFd) -> io::Result<()> {
    let not_ours = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "a descriptor in the escrow is not a socket of UDP port 4791",
        )
    };
    let address: SocketAddrAny = rustix::net::getsockname(fd)?;
    let address = std::net::SocketAddr::try_from(address).map_err(|_| not_ours())?;
    if address.port() != ROCE_PORT || !address.ip().is_unspecified() {
        return Err(not_ours());
    }
    Ok(())
}
