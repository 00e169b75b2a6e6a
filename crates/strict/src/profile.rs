//! Profiles: the attributes and limits of real adapters.
//!
//! A profile changes the numbers of `ibv_query_device`, and refuses requests that the adapter
//! refuses, with the adapter's errno. Features that this device does not have stay absent:
//! a profile takes away and never adds.

mod efa;
mod mlx5;
mod rxe;

use core::fmt;

/// The types of queue pairs that profiles distinguish.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Datagrams.
    Ud,
    /// Either end of an XRC connection.
    Xrc,
}

/// The numbers of an adapter. Their names are those of `ibv_device_attr`, if it has them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the manual page of ibv_query_device describes them
pub struct Limits {
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub device_cap_flags: u32,
    /// Flushes and atomic writes.
    pub has_persistent_ops: bool,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    /// The largest receive queue, if it may be larger than `max_qp_wr`.
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_sge_rd: u32,
    pub max_inline_data: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_mw: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub has_atomics: bool,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_ah: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    /// `general_caps` of on-demand paging: 1 explicit, 2 implicit.
    pub odp_general: u64,
    /// Operations of RC and XRC with on-demand paging.
    pub odp_rc: u32,
    /// Operations of UD with on-demand paging.
    pub odp_ud: u32,
    pub has_timestamps: bool,
    pub max_dm_size: u64,
    pub max_msg_sz: u32,
    pub gid_tbl_len: u32,
}

/// A real adapter.
#[derive(Debug)]
pub struct Profile {
    name: &'static str,
    limits: Limits,
    kinds: &'static [Kind],
    /// True if every send must be signaled.
    must_signal: bool,
}

/// A word that is not a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownProfile(String);

impl fmt::Display for UnknownProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Profile::ALL
            .map(|profile| format!("`{}`", profile.name))
            .join(", ");
        write!(f, "profile `{}` is not known; use {known} or `off`", self.0)
    }
}

impl core::error::Error for UnknownProfile {}

/// The errno of a refusal.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RefusalErrno {
    /// EINVAL
    Invalid,
    /// ENOMEM
    NoMemory,
    /// EOPNOTSUPP
    NotSupported,
}

/// A request that the adapter refuses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The errno.
    pub errno: RefusalErrno,
    /// The value and the limit.
    pub why: String,
}

/// The sizes that a program asks for.
#[derive(Copy, Clone, Default, Debug)]
#[allow(missing_docs)] // the manual page of ibv_create_qp describes them
pub struct QpSizes {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

impl Profile {
    /// All profiles.
    pub const ALL: [&'static Profile; 3] = [&mlx5::PROFILE, &efa::PROFILE, &rxe::PROFILE];

    /// Returns a profile by its name; none for `off`.
    ///
    /// # Errors
    /// If there is no profile of this name.
    pub fn named(name: &str) -> Result<Option<&'static Profile>, UnknownProfile> {
        if name.is_empty() || name == "off" {
            return Ok(None);
        }
        let found = Profile::ALL
            .into_iter()
            .find(|profile| profile.name == name);
        found.map(Some).ok_or_else(|| UnknownProfile(name.into()))
    }

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the numbers.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// True if the adapter has queue pairs of this type.
    pub fn has(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    /// True if the adapter refuses sends without a completion.
    pub fn must_signal(&self) -> bool {
        self.must_signal
    }

    /// Checks a new queue pair.
    ///
    /// # Errors
    /// If the adapter refuses it.
    pub fn check_qp(&self, kind: Kind, sizes: &QpSizes, has_srq: bool) -> Result<(), Refusal> {
        if !self.has(kind) {
            let why = format!("{} has no queue pairs of type {kind:?}", self.name);
            return Err(not_supported(why));
        }
        let limits = &self.limits;
        if has_srq && limits.max_srq == 0 {
            return Err(invalid(format!(
                "{} has no shared receive queues",
                self.name
            )));
        }
        let recv_wr = if has_srq { 0 } else { sizes.max_recv_wr };
        self.check_sizes(&[
            (
                "max_send_wr",
                sizes.max_send_wr.into(),
                limits.max_qp_wr.into(),
            ),
            ("max_recv_wr", recv_wr.into(), limits.max_recv_wr.into()),
            (
                "max_send_sge",
                sizes.max_send_sge.into(),
                limits.max_send_sge.into(),
            ),
            (
                "max_recv_sge",
                sizes.max_recv_sge.into(),
                limits.max_recv_sge.into(),
            ),
            (
                "max_inline_data",
                sizes.max_inline_data.into(),
                limits.max_inline_data.into(),
            ),
        ])
    }

    /// Checks the number of entries of a completion queue.
    ///
    /// # Errors
    /// If the adapter refuses it.
    pub fn check_cq(&self, cqe: u32) -> Result<(), Refusal> {
        self.check_sizes(&[("cqe", cqe.into(), self.limits.max_cqe.into())])
    }

    /// Checks the sizes of a shared receive queue.
    ///
    /// # Errors
    /// If the adapter refuses it, or has none.
    pub fn check_srq(&self, max_wr: u32, max_sge: u32) -> Result<(), Refusal> {
        let limits = &self.limits;
        if limits.max_srq == 0 {
            let why = format!("{} has no shared receive queues", self.name);
            return Err(not_supported(why));
        }
        self.check_sizes(&[
            ("max_wr", max_wr.into(), limits.max_srq_wr.into()),
            ("max_sge", max_sge.into(), limits.max_srq_sge.into()),
        ])
    }

    /// Checks the length of a memory region, and whether it may be on demand.
    ///
    /// # Errors
    /// If the adapter refuses it.
    pub fn check_mr(&self, length: u64, on_demand: bool, implicit: bool) -> Result<(), Refusal> {
        let caps = self.limits.odp_general;
        if on_demand && (caps & 1 == 0 || implicit && caps & 2 == 0) {
            let why = format!("{} has no on-demand paging of this kind", self.name);
            return Err(not_supported(why));
        }
        match implicit {
            true => Ok(()),
            false => self.check_sizes(&[("length", length, self.limits.max_mr_size)]),
        }
    }

    /// Checks the READs and atomics outstanding of a queue pair.
    ///
    /// # Errors
    /// If the adapter refuses them.
    pub fn check_rd_atomic(&self, initiator: u8, responder: u8) -> Result<(), Refusal> {
        let most = u64::from(self.limits.max_qp_rd_atom);
        self.check_sizes(&[
            ("max_rd_atomic", initiator.into(), most),
            ("max_dest_rd_atomic", responder.into(), most),
        ])
    }

    /// Checks the number of live objects before one more is created.
    ///
    /// # Errors
    /// If the adapter has no more.
    pub fn check_count(&self, what: &str, live: usize, most: u32) -> Result<(), Refusal> {
        match live < most as usize {
            true => Ok(()),
            false => Err(Refusal {
                errno: RefusalErrno::NoMemory,
                why: format!("{} has {most} {what}, and all are in use", self.name),
            }),
        }
    }

    /// Refuses the first value above its limit.
    fn check_sizes(&self, sizes: &[(&str, u64, u64)]) -> Result<(), Refusal> {
        let above = sizes.iter().find(|(_, value, most)| value > most);
        match above {
            None => Ok(()),
            Some((what, value, most)) => Err(invalid(format!(
                "{what} {value}: {} allows at most {most}",
                self.name
            ))),
        }
    }
}

fn invalid(why: String) -> Refusal {
    Refusal {
        errno: RefusalErrno::Invalid,
        why,
    }
}

fn not_supported(why: String) -> Refusal {
    Refusal {
        errno: RefusalErrno::NotSupported,
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> &'static Profile {
        Profile::named(name).unwrap().unwrap()
    }

    #[test]
    fn profiles_are_found_by_name() {
        for profile in Profile::ALL {
            assert_eq!(named(profile.name()).name(), profile.name());
        }
        assert!(Profile::named("off").unwrap().is_none());
        let error = Profile::named("cx9").unwrap_err().to_string();
        assert!(
            error.contains("`cx9`") && error.contains("`mlx5`"),
            "{error}"
        );
    }

    #[test]
    fn values_at_the_limit_are_granted_and_those_above_refused() {
        for profile in Profile::ALL {
            let limits = profile.limits();
            let sizes = QpSizes {
                max_send_wr: limits.max_qp_wr,
                max_recv_wr: limits.max_recv_wr,
                max_send_sge: limits.max_send_sge,
                max_recv_sge: limits.max_recv_sge,
                max_inline_data: limits.max_inline_data,
            };
            assert_eq!(profile.check_qp(Kind::Ud, &sizes, false), Ok(()));
            let more: [fn(&mut QpSizes); 5] = [
                |sizes| sizes.max_send_wr += 1,
                |sizes| sizes.max_recv_wr += 1,
                |sizes| sizes.max_send_sge += 1,
                |sizes| sizes.max_recv_sge += 1,
                |sizes| sizes.max_inline_data += 1,
            ];
            for more in more {
                let mut sizes = sizes;
                more(&mut sizes);
                let refusal = profile.check_qp(Kind::Ud, &sizes, false).unwrap_err();
                assert_eq!(refusal.errno, RefusalErrno::Invalid, "{}", refusal.why);
            }
            assert_eq!(profile.check_cq(limits.max_cqe), Ok(()));
            assert!(profile.check_cq(limits.max_cqe + 1).is_err());
            assert!(profile.check_count("queue pairs", 3, 4).is_ok());
            let full = profile.check_count("queue pairs", 4, 4).unwrap_err();
            assert_eq!(full.errno, RefusalErrno::NoMemory);
        }
    }

    #[test]
    fn efa_has_datagrams_only_and_signals_all() {
        let (efa, sizes) = (named("efa"), QpSizes::default());
        for kind in [Kind::Rc, Kind::Uc, Kind::Xrc] {
            let refusal = efa.check_qp(kind, &sizes, false).unwrap_err();
            assert_eq!(refusal.errno, RefusalErrno::NotSupported);
        }
        assert!(efa.must_signal());
        assert!(efa.check_srq(1, 1).is_err());
        let shared = efa.check_qp(Kind::Ud, &sizes, true).unwrap_err();
        assert_eq!(shared.errno, RefusalErrno::Invalid);
    }

    #[test]
    fn outstanding_reads_are_limited() {
        assert!(named("mlx5").check_rd_atomic(16, 16).is_ok());
        assert!(named("mlx5").check_rd_atomic(17, 1).is_err());
        assert!(named("rxe").check_rd_atomic(128, 128).is_ok());
        assert!(named("efa").check_rd_atomic(1, 0).is_err());
    }

    #[test]
    fn regions_on_demand_need_the_capability() {
        assert!(named("mlx5").check_mr(4096, true, false).is_ok());
        assert!(named("mlx5").check_mr(u64::MAX, true, true).is_ok());
        let refusal = named("rxe").check_mr(4096, true, false).unwrap_err();
        assert_eq!(refusal.errno, RefusalErrno::NotSupported);
    }
}
