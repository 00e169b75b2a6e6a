//! The impairment of the network between both ends, in both directions.

/// An impairment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weather {
    Fair,
    /// Loses this percentage of packets.
    Loss(u8),
    Reordering,
    Duplication,
    /// Delays packets by 20 ms each way.
    Delay,
    /// Loses refusals of connection requests, so that the client's TCP or connection manager
    /// repeats the request.
    NoRefusals,
    /// Loses refusals as well, and delays the messages of the connection manager on their way
    /// to the guest. The delay is shorter than the wait for a repeated REQ.
    LateCalls,
}

/// The delay of `LateCalls`, as a netem option.
const LATE: &str = "delay 300ms";

/// Removes all impairments.
const CLEAR: &str = "tc qdisc del dev data0 root 2>/dev/null; \
                     tc qdisc del dev data0 clsact 2>/dev/null; \
                     ip link del arrivals0 2>/dev/null; ip link del refusals0 2>/dev/null; true";

/// Matches the messages of the connection manager: packets to UDP port 4791 and queue pair 1. The
/// queue pair number is at offset 32: after the headers of IP and UDP and the first word of the
/// BTH.
const CM_MESSAGE: &str = "match ip dport 4791 0xffff match u32 0x00000001 0x00ffffff at 32";

/// Matches a REJ with reason 8, which says that no process listens. The MAD begins at offset 48,
/// with the attribute of a REJ (0x12) at its offset 16 and the reason at its offset 34.
const REJ: &str = "match u16 0x0012 0xffff at 64 match u16 0x0008 0xffff at 82";

/// Matches TCP's answer to a SYN for a port without a listener: RST and ACK with the sequence
/// number 0.
const TCP_REFUSAL: &str = "match ip protocol 6 0xff match u32 0 0xffffffff at 24 \
                           match u8 0x14 0xff at 33";

impl Weather {
    /// Returns the name in reports.
    pub(crate) fn name(self) -> Option<String> {
        match self {
            Weather::NoRefusals => Some("refusals lost".into()),
            Weather::LateCalls => Some(format!("refusals lost, calls with {LATE}")),
            _ => self.netem(),
        }
    }

    /// Returns the netem options, if they apply to all packets in both directions.
    fn netem(self) -> Option<String> {
        match self {
            Weather::Fair | Weather::NoRefusals | Weather::LateCalls => None,
            Weather::Loss(percent) => Some(format!("loss {percent}%")),
            Weather::Reordering => Some("delay 2ms reorder 75% 50%".into()),
            Weather::Duplication => Some("duplicate 10%".into()),
            Weather::Delay => Some("delay 20ms".into()),
        }
    }

    /// Returns the shell command that replaces the impairment in the guest.
    pub(crate) fn command(self) -> String {
        let rules = match (self, self.netem()) {
            (Weather::NoRefusals, _) => lose_refusals("data0"),
            (Weather::LateCalls, _) => [lose_refusals("data0"), delay_calls()].concat(),
            // On its netdev for sent packets, and on an ifb netdev, to which arriving packets
            // are redirected, for received ones.
            (_, Some(netem)) => format!(
                "tc qdisc add dev data0 root netem limit 10000 {netem}; \
                 tc qdisc add dev data0 clsact; {}; \
                 tc filter add dev data0 ingress matchall {}; ",
                ifb("arrivals0", &netem),
                redirect("arrivals0"),
            ),
            (_, None) => return CLEAR.to_owned(),
        };
        format!("{CLEAR}; set -e; {rules}")
    }
}

/// Returns the shell command that loses refusals of connection requests on a netdev of the guest.
pub(crate) fn lose_refusals(netdev: &str) -> String {
    let mut rules = format!(
        "tc qdisc add dev {netdev} clsact; {}; ",
        ifb("refusals0", "loss 100%")
    );
    for direction in ["ingress", "egress"] {
        for refusal in [TCP_REFUSAL, &format!("{CM_MESSAGE} {REJ}")] {
            rules += &format!(
                "tc filter add dev {netdev} {direction} protocol ip prio 1 u32 {refusal} {}; ",
                redirect("refusals0")
            );
        }
    }
    rules
}

/// Returns the rules that delay messages to the guest. They come after those for refusals.
fn delay_calls() -> String {
    format!(
        "{}; tc filter add dev data0 ingress protocol ip prio 2 u32 {CM_MESSAGE} {}; ",
        ifb("arrivals0", LATE),
        redirect("arrivals0")
    )
}

/// Adds a netdev that passes packets on to the direction they came from, impaired by netem.
fn ifb(name: &str, netem: &str) -> String {
    format!(
        "ip link add {name} type ifb; ip link set {name} mtu 9000 up; \
         tc qdisc add dev {name} root netem limit 10000 {netem}"
    )
}

fn redirect(to: &str) -> String {
    format!("action mirred egress redirect dev {to}")
}
