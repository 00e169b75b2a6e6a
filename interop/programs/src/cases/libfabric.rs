//! libfabric: connected endpoints of its verbs provider, and unconnected endpoints on top of
//! them.

use super::Ports;
use crate::case::Case;
use crate::place::LINK_V4;

const ENDPOINTS: [(&str, &str); 2] = [("verbs", "msg"), ("verbs;ofi_rxm", "rdm")];

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(19_900);
    let info = Case::single_command("fi_info", "fi_info -p verbs -t FI_EP_MSG")
        .expect("domain: rxe0\n")
        .expect("protocol: FI_PROTO_RDMA_CM_IB_RC\n");
    let mut cases = vec![info];
    for (provider, endpoint) in ENDPOINTS {
        for options in ["-S all -I 20 -c", "-S 65536 -I 100"] {
            // With -c, fi_pingpong checks the data.
            let common = format!("fi_pingpong -p {provider} -e {endpoint} -d rxe0 {options}");
            let server = format!("{common} -B {{port}}");
            let client = format!("{common} -P {{port}} {LINK_V4}");
            let case =
                Case::with_tcp_server("fi_pingpong", ports.next(), &server, &client).server_ends();
            cases.push(case.expect("usec/xfer"));
        }
    }
    cases
}
