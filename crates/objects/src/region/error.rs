//! Errors of key checks, in words that a person can act on.

use core::fmt;

use thiserror::Error;

use crate::verbs::Access;

/// The use of a key.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum KeyRole {
    /// Local key: a work request names local memory.
    Lkey,
    /// Remote key: a peer names memory.
    Rkey,
    /// Key of a memory window that is bound.
    Window,
}

impl fmt::Display for KeyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyRole::Lkey => "lkey",
            KeyRole::Rkey => "rkey",
            KeyRole::Window => "window",
        })
    }
}

/// The reason why a key does not allow an access or a bind.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum AccessError {
    /// No region or window has the key.
    #[error("{role} {key:#x} is unknown")]
    Unknown { role: KeyRole, key: u32 },
    /// The key belongs to another protection domain than the queue pair.
    #[error("{role} {key:#x} belongs to another protection domain")]
    OtherDomain { role: KeyRole, key: u32 },
    /// The key lacks permissions.
    #[error("{role} {key:#x} does not allow {}", Names(*missing))]
    Denied {
        role: KeyRole,
        key: u32,
        missing: Access,
    },
    /// A part of the range is outside the region or window.
    #[error("{role} {key:#x} does not cover {address:#x}+{length}")]
    OutOfRange {
        role: KeyRole,
        key: u32,
        address: u64,
        length: u64,
    },
    /// The key of a window was used as a local key.
    #[error("lkey {key:#x} is the key of a memory window, which only peers may use")]
    WindowAsLkey { key: u32 },
    /// The window is not bound.
    #[error("window {key:#x} is not bound")]
    NotBound { key: u32 },
    /// A type 2 window belongs to the queue pair that bound it.
    #[error("window {key:#x} is bound to another queue pair")]
    OtherQueuePair { key: u32 },
    /// A type 2 window must be invalidated before it is bound again.
    #[error("window {key:#x} is already bound")]
    AlreadyBound { key: u32 },
    /// A bind may only change the low byte of a key.
    #[error("window {key:#x} cannot get the key {asked:#x}: only the low 8 bits may differ")]
    WrongNewKey { key: u32, asked: u32 },
    /// Only a type 1 window is unbound by binding nothing.
    #[error("type 2 window {key:#x} cannot be bound to zero bytes")]
    NothingToBind { key: u32 },
    /// A bind of a positive length names no region.
    #[error("window {key:#x} cannot be bound to {length} bytes of no region")]
    NoRegion { key: u32, length: u64 },
    /// Type 1 windows use the region's addresses.
    #[error("type 1 window {key:#x} cannot be ZERO_BASED")]
    ZeroBasedType1 { key: u32 },
    /// The bind has unknown access flags.
    #[error("window {key:#x} asks for the unknown access flags {unknown:#x}")]
    UnknownFlags { key: u32, unknown: u32 },
    /// Only type 2 windows are invalidated by work requests.
    #[error("key {key:#x} cannot be invalidated: it belongs to a {owner}")]
    NotInvalidatable { key: u32, owner: &'static str },
}

/// Displays access flags by name.
pub(super) struct Names(pub(super) Access);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, _)) in self.0.iter_names().enumerate() {
            if i > 0 {
                f.write_str(" | ")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}
