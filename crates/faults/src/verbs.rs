//! Verbs that fail on demand.

use std::sync::Arc;

use crate::counts::Counts;
use crate::plan::{Effect, Plan, Trigger};

/// The verbs that can fail, each with the error that a sweep provokes. The extended forms of
/// a verb (`ibv_create_qp_ex`, `ibv_reg_mr_iova`) count as the verb.
pub const VERBS: &[(&str, i32)] = &[
    ("ibv_get_device_list", ENOMEM),
    ("ibv_open_device", ENOMEM),
    ("ibv_query_device", EINVAL),
    ("ibv_query_port", EINVAL),
    ("ibv_query_gid", EINVAL),
    ("ibv_alloc_pd", ENOMEM),
    ("ibv_dealloc_pd", EBUSY),
    ("ibv_reg_mr", ENOMEM),
    ("ibv_rereg_mr", ENOMEM),
    ("ibv_dereg_mr", EBUSY),
    ("ibv_alloc_mw", ENOMEM),
    ("ibv_bind_mw", EINVAL),
    ("ibv_create_comp_channel", ENOMEM),
    ("ibv_create_cq", ENOMEM),
    ("ibv_resize_cq", ENOMEM),
    ("ibv_req_notify_cq", EINVAL),
    ("ibv_get_cq_event", EINTR),
    ("ibv_poll_cq", EIO),
    ("ibv_destroy_cq", EBUSY),
    ("ibv_create_srq", ENOMEM),
    ("ibv_modify_srq", EINVAL),
    ("ibv_destroy_srq", EBUSY),
    ("ibv_create_qp", ENOMEM),
    ("ibv_modify_qp", EINVAL),
    ("ibv_query_qp", EINVAL),
    ("ibv_destroy_qp", EBUSY),
    ("ibv_post_send", ENOMEM),
    ("ibv_post_recv", ENOMEM),
    ("ibv_post_srq_recv", ENOMEM),
    ("ibv_create_ah", ENOMEM),
    ("ibv_attach_mcast", ENOMEM),
    ("rdma_create_event_channel", ENOMEM),
    ("rdma_create_id", ENOMEM),
    ("rdma_bind_addr", EADDRINUSE),
    ("rdma_resolve_addr", ENODEV),
    ("rdma_resolve_route", EINVAL),
    ("rdma_listen", EADDRINUSE),
    ("rdma_connect", EINVAL),
    ("rdma_accept", EINVAL),
    ("rdma_reject", EINVAL),
    ("rdma_disconnect", EINVAL),
    ("rdma_get_cm_event", EINTR),
    ("rdma_create_qp", ENOMEM),
    ("rdma_create_srq", ENOMEM),
    ("rdma_join_multicast", ENOMEM),
    ("rdma_getaddrinfo", ENOMEM),
    ("rdma_create_ep", ENOMEM),
    ("rdma_get_request", EINVAL),
    ("rsocket", ENOMEM),
    ("rbind", EADDRINUSE),
    ("rlisten", EADDRINUSE),
    ("raccept", ECONNABORTED),
    ("rconnect", ECONNREFUSED),
];

const EINTR: i32 = 4;
const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EADDRINUSE: i32 = 98;
const ECONNABORTED: i32 = 103;
const ECONNREFUSED: i32 = 111;

/// Returns true for a verb that can fail on demand.
pub fn is_verb(name: &str) -> bool {
    VERBS.iter().any(|(verb, _)| *verb == name)
}

/// The rules of a plan about verbs.
#[derive(Debug)]
pub struct VerbFaults {
    plan: Arc<Plan>,
    counts: Arc<dyn Counts>,
}

impl VerbFaults {
    /// Creates the rules.
    pub fn new(plan: Arc<Plan>, counts: Arc<dyn Counts>) -> VerbFaults {
        VerbFaults { plan, counts }
    }

    /// Counts a call of a verb. Returns the errno if the call must fail.
    pub fn call(&self, verb: &str) -> Option<i32> {
        let mut failure = None;
        for (index, rule) in self.plan.rules.iter().enumerate() {
            let Effect::Fail { verb: named, errno } = rule.effect else {
                continue;
            };
            if named != verb {
                continue;
            }
            let number = self.counts.select(index);
            let fails = match rule.trigger {
                Trigger::Nth { first, last } => (first..=last).contains(&number),
                Trigger::Every(step) => number.is_multiple_of(step),
                _ => true,
            };
            if fails {
                self.counts.hit(index);
                failure = failure.or(Some(errno));
            }
        }
        failure
    }
}
