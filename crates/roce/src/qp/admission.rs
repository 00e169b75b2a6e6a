//! Checks of a request before the responder executes it: sequence, permission, size.

use ferroce_wire::{Opcode, Packet};

use super::Qp;
use super::post::MAX_MESSAGE;
use super::request_kind::RequestKind;
use super::responder::{Message, Refusal};
use crate::verbs::Access;

impl Message {
    /// Returns true if a packet with this opcode continues the message. Header prediction
    /// asks this too: it must not accept a packet that the responder would refuse.
    #[inline]
    pub(super) fn continues_with(&self, opcode: Opcode) -> bool {
        let is_same_operation = match self.write {
            Some(_) => opcode.is_write(),
            None => opcode.is_send(),
        };
        is_same_operation && !opcode.starts_message()
    }
}

impl Qp {
    /// Returns true if the access flags of the queue pair permit an operation.
    #[inline]
    pub(super) fn permits(&self, opcode: Opcode) -> bool {
        required_access(RequestKind::of(opcode)).is_some_and(|need| self.attr.access.contains(need))
    }

    /// Checks that FIRST and ONLY start a message, and that MIDDLE and LAST continue it.
    pub(super) fn check_sequence(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let opcode = packet.opcode();
        let fits = match &self.resp.message {
            None => opcode.starts_message(),
            Some(message) => message.continues_with(opcode),
        };
        if fits {
            return Ok(());
        }
        let place = match &self.resp.message {
            None => "outside a message",
            Some(_) => "inside another message",
        };
        Err(Refusal::invalid(format!("{opcode} {place}")))
    }

    /// Checks the access flags of the queue pair, and `max_dest_rd_atomic`.
    pub(super) fn check_permission(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let opcode = packet.opcode();
        if opcode.is_send() {
            return Ok(());
        }
        let kind = RequestKind::of(opcode);
        let need = required_access(kind).unwrap_or_else(|| flush_access(packet));
        if !self.attr.access.contains(need) {
            return Err(Refusal::invalid(format!(
                "{opcode}, but the queue pair does not allow {need:?}"
            )));
        }
        if kind.has_own_response() && self.kind.is_reliable() {
            let depth = usize::from(self.attr.max_dest_rd_atomic);
            let unanswered = self
                .resp
                .responses
                .iter()
                .filter(|r| r.is_outstanding())
                .count();
            if unanswered >= depth {
                return Err(Refusal::invalid(format!(
                    "{opcode} beyond the {depth} that may be outstanding"
                )));
            }
        }
        Ok(())
    }

    /// Checks the payload length. FIRST and MIDDLE have one MTU, LAST has 1 byte to one MTU,
    /// and ONLY has at most one MTU. The packets of a WRITE add up to the length in its RETH.
    pub(super) fn check_size(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let (opcode, length) = (packet.opcode(), packet.payload().len() as u64);
        let mtu = u64::from(self.mtu);
        let fits = if !opcode.ends_message() {
            length == mtu
        } else if opcode.is_last() {
            (1..=mtu).contains(&length)
        } else {
            length <= mtu
        };
        let promised = match (packet.reth(), &self.resp.message) {
            (Some(reth), _) => Some(u64::from(reth.length)),
            (None, Some(message)) => message.write.map(|write| write.left),
            _ => None,
        };
        let adds_up = promised.is_none_or(|promised| {
            promised <= MAX_MESSAGE
                && match opcode.ends_message() {
                    true => promised == length,
                    false => promised > length,
                }
        });
        if fits && adds_up {
            return Ok(());
        }
        Err(Refusal::invalid(format!(
            "{opcode} with {length} bytes at path MTU {mtu}{}",
            promised.map_or(String::new(), |p| format!(", {p} were left to come"))
        )))
    }
}

/// Returns the access that a request requires; `None` for a FLUSH, whose access depends on
/// the packet.
#[inline]
fn required_access(kind: RequestKind) -> Option<Access> {
    Some(match kind {
        RequestKind::Write | RequestKind::AtomicWrite => Access::REMOTE_WRITE,
        RequestKind::Read => Access::REMOTE_READ,
        RequestKind::CompareSwap | RequestKind::FetchAdd => Access::REMOTE_ATOMIC,
        RequestKind::Send | RequestKind::NotExecuted => Access::empty(),
        RequestKind::Flush => return None,
    })
}

/// Returns the access flags that a flush needs, by its placement type.
pub(super) fn flush_access(packet: &Packet<'_>) -> Access {
    let placement = packet.feth().map_or(0, |feth| feth.placement);
    let mut need = Access::empty();
    need.set(Access::FLUSH_GLOBAL, placement & 1 != 0);
    need.set(Access::FLUSH_PERSISTENT, placement & 2 != 0);
    need
}
