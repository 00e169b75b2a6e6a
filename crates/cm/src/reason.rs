//! The reasons of a REJ.

use core::fmt;

/// The reason of a REJ. A peer may send any number; the known numbers have constants.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Reason(pub u16);

macro_rules! reasons {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Reason {
            $(#[doc = $text] pub const $name: Reason = Reason($value);)*

            /// Returns the description of a known reason.
            pub fn text(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    NO_QP = 1, "no queue pair";
    NO_EEC = 2, "no end-to-end context";
    NO_RESOURCES = 3, "no resources";
    TIMEOUT = 4, "timeout";
    UNSUPPORTED = 5, "unsupported request";
    INVALID_COMM_ID = 6, "invalid communication ID";
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    INVALID_SERVICE_ID = 8, "invalid service ID: no listener";
    INVALID_TRANSPORT = 9, "invalid transport service type";
    STALE_CONNECTION = 10, "stale connection";
    RDC_MISSING = 11, "no reliable datagram channel";
    INVALID_GID = 12, "invalid GID";
    INVALID_LID = 13, "invalid LID";
    INVALID_SL = 14, "invalid service level";
    INVALID_TRAFFIC_CLASS = 15, "invalid traffic class";
    INVALID_HOP_LIMIT = 16, "invalid hop limit";
    INVALID_PACKET_RATE = 17, "invalid packet rate";
    INVALID_ALT_GID = 18, "invalid alternate GID";
    INVALID_ALT_LID = 19, "invalid alternate LID";
    INVALID_ALT_SL = 20, "invalid alternate service level";
    INVALID_ALT_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    INVALID_ALT_HOP_LIMIT = 22, "invalid alternate hop limit";
    INVALID_ALT_PACKET_RATE = 23, "invalid alternate packet rate";
    PORT_CM_REDIRECT = 24, "port and connection manager redirection";
    PORT_REDIRECT = 25, "port redirection";
    INVALID_MTU = 26, "invalid path MTU";
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    CONSUMER = 28, "rejected by the application";
    INVALID_RNR_RETRY = 29, "invalid RNR retry count";
    DUPLICATE_LOCAL_COMM_ID = 30, "duplicate local communication ID";
    INVALID_CLASS_VERSION = 31, "unsupported class version";
    INVALID_FLOW_LABEL = 32, "invalid flow label";
    INVALID_ALT_FLOW_LABEL = 33, "invalid alternate flow label";
    VENDOR_OPTION = 35, "vendor option not supported";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "reason {}", self.0),
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({self})", self.0)
    }
}
