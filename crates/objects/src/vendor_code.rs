//! Codes of failures: the `vendor_err` of a failed completion. `ferroce explain CODE` and
//! docs/DEBUGGING.md describe them. A code never gets another meaning.

use crate::error::Reason;
use crate::region::AccessError;

/// A code, with its meaning in words.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct VendorCode {
    /// The value of `vendor_err`.
    pub code: u32,
    /// A short name.
    pub name: &'static str,
    /// The cause of the failure.
    pub meaning: &'static str,
    /// The remedy, for a person.
    pub remedy: &'static str,
}

/// The code of a work request that was flushed.
pub const FLUSHED: u32 = 0x01;

macro_rules! codes {
    ($($code:literal $name:literal $meaning:literal $remedy:literal;)*) => {
        &[$(VendorCode { code: $code, name: $name, meaning: $meaning, remedy: $remedy },)*]
    };
}

/// All codes, in ascending order.
pub const VENDOR_CODES: &[VendorCode] = codes! {
    0x01 "flushed"
        "the queue pair was in the error state, so the work request was not executed"
        "look at the first failed completion of the queue pair: it has the cause";
    0x10 "key-unknown"
        "no memory region or window has the key"
        "the region was deregistered, or the key is that of another program or run: exchange keys after registration";
    0x11 "key-other-pd"
        "the key belongs to another protection domain than the queue pair"
        "register the memory in the protection domain of the queue pair";
    0x12 "key-denied"
        "the key does not permit the access"
        "register the memory with the access flags that the operation needs, such as IBV_ACCESS_REMOTE_WRITE";
    0x13 "key-range"
        "a part of the memory is outside the region or window"
        "compare address and length of the work request with those of the registration";
    0x14 "window"
        "a memory window is not bound, is bound to another queue pair, or was used as a local key"
        "bind the window first, on the queue pair that uses it";
    0x15 "memory"
        "the key is valid, but the memory behind it cannot be accessed"
        "the program unmapped or protected registered memory: deregister it before that";
    0x20 "peer-invalid-request"
        "the peer refused the request as invalid"
        "look at the peer: its queue pair does not permit the operation, or its receive is shorter than the message";
    0x21 "peer-access"
        "the peer refused the access to its memory"
        "look at the peer: `ferroce explain` names the key and the reason there";
    0x22 "peer-operational"
        "the peer could not execute the request"
        "look at the peer: the memory of its region or receive cannot be accessed";
    0x30 "no-answer"
        "the peer did not answer, although the request was sent again retry_cnt times"
        "check that the peer runs, that its queue pair is in RTR or RTS and has this queue pair as its peer, and that UDP port 4791 is open";
    0x31 "no-progress"
        "the peer reported gaps retry_cnt times in a row, without progress"
        "the network loses packets of one kind, often long ones: compare path MTU and netdev MTU";
    0x32 "receiver-not-ready"
        "the peer had no receive posted, rnr_retry times in a row"
        "post receives before the peer sends, or set rnr_retry to 7 for unlimited retries";
    0x40 "bad-response"
        "a response of the peer does not match the request"
        "capture the packets with `ferroce capture -w FILE` and look at the peer's implementation";
    0x41 "invalid-request"
        "a request breaks the protocol or exceeds a limit"
        "read the reason in `ferroce explain`: it names the limit";
    0x42 "receive-too-short"
        "a message is longer than the receive that was posted for it"
        "post longer receives";
    0x43 "datagram-too-long"
        "a datagram is longer than the MTU of the port"
        "send at most as many bytes as ibv_query_port reports as active_mtu";
    0x50 "terminated"
        "the peer ended the iWARP stream with a TERMINATE message"
        "look at the peer: the message names layer and error";
    0x51 "stream-lost"
        "the TCP connection of the iWARP stream broke"
        "check that the peer runs";
    0x60 "bind"
        "a memory window cannot be bound"
        "read the reason in `ferroce explain`: it names key and rule";
    0x61 "cq-overflow"
        "the completion queue was full, and a completion is lost"
        "create completion queues with room for all work requests of their queue pairs, and poll them";
    0x70 "provoked"
        "a fault that the user has set"
        "`ferroce link` shows the faults of a link; `ferroce run --faults` sets those of a program";
};

impl VendorCode {
    /// Returns the description of a code.
    pub fn find(code: u32) -> Option<&'static VendorCode> {
        VENDOR_CODES.iter().find(|known| known.code == code)
    }
}

impl Reason {
    /// Returns the code of the reason.
    pub fn code(&self) -> u32 {
        match self {
            Reason::Access(error) => match error {
                AccessError::Unknown { .. } => 0x10,
                AccessError::OtherDomain { .. } => 0x11,
                AccessError::Denied { .. } => 0x12,
                AccessError::OutOfRange { .. } => 0x13,
                _ => 0x14,
            },
            Reason::Fault(_) => 0x15,
            Reason::Refused { nak, .. } => match *nak {
                "invalid request" => 0x20,
                "remote access error" => 0x21,
                _ => 0x22,
            },
            Reason::NoAnswer { .. } => 0x30,
            Reason::NoProgress { .. } => 0x31,
            Reason::ReceiverNotReady { .. } => 0x32,
            Reason::BadResponse(_) => 0x40,
            Reason::InvalidRequest(_) => 0x41,
            Reason::ReceiveTooShort { .. } => 0x42,
            Reason::DatagramTooLong { .. } => 0x43,
            Reason::Terminated(_) => 0x50,
            Reason::StreamLost(_) => 0x51,
            Reason::Bind(_) => 0x60,
            Reason::CqOverflow => 0x61,
            Reason::Provoked => 0x70,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Fault;
    use crate::region::KeyRole;

    #[test]
    fn codes_ascend_and_every_reason_has_one() {
        assert!(VENDOR_CODES.is_sorted_by(|a, b| a.code < b.code));
        let key = 0x12;
        let role = KeyRole::Rkey;
        for reason in [
            Reason::Access(AccessError::Unknown { role, key }),
            Reason::Access(AccessError::OtherDomain { role, key }),
            Reason::Access(AccessError::NotBound { key }),
            Reason::Fault(Fault::host(4096)),
            Reason::NoProgress { psn: 0, retries: 7 },
            Reason::ReceiverNotReady { retries: 7 },
            Reason::BadResponse(String::new()),
            Reason::InvalidRequest(String::new()),
            Reason::Terminated(String::new()),
            Reason::StreamLost("reset"),
            Reason::Bind(AccessError::NotBound { key }),
            Reason::CqOverflow,
        ] {
            assert!(VendorCode::find(reason.code()).is_some(), "{reason}");
        }
        for nak in ["invalid request", "remote access error", "other"] {
            let request = String::new();
            let code = Reason::Refused { nak, request }.code();
            assert!(VendorCode::find(code).is_some(), "{nak}");
        }
        assert!(VendorCode::find(FLUSHED).is_some());
        assert_eq!(VendorCode::find(0), None);
    }
}
