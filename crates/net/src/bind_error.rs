//! Why a slot's sockets could not be made, and what to do about it.

use std::fmt;
use std::io;
use std::path::Path;

use ferroce_wire::ROCE_PORT;

use crate::port_table;

/// Why a slot has no sockets.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else has the port.
    #[error(
        "UDP port {ROCE_PORT}, which RoCEv2 needs, is taken in this network namespace: {holder}. \
         {remedy} (`ss -ulnpe 'sport = :{ROCE_PORT}'`, as root, shows who has it.)",
        remedy = .holder.remedy()
    )]
    PortTaken {
        /// Who, as far as it can be seen.
        holder: Holder,
    },
    /// The group has not as many members as the slot's number says, so the new
    /// socket would get another slot's packets.
    #[error(
        "slot {slot} cannot be created: the group on UDP port {ROCE_PORT} has {found} sockets \
         ({family}), so a new one would serve slot {found}. {} the group since before ferroced was \
         restarted, and does not hand it over; end it",
        holder.as_ref().map_or_else(
            || "Another ferroced of this user, or a program that outlived one, holds".to_owned(),
            |(pid, name)| format!("Process {pid} ({name}) holds"),
        )
    )]
    WrongPlace {
        /// The slot that was asked for.
        slot: u8,
        /// How many sockets there are.
        found: usize,
        /// Of which family.
        family: &'static str,
        /// The process that has one of them open, if it can be seen.
        holder: Option<(u32, String)>,
    },
    /// The kernel cannot steer packets to slots.
    #[error(
        "this kernel does not let a BPF program choose among the sockets of a port \
         (SO_ATTACH_REUSEPORT_CBPF, Linux 4.5): {0}"
    )]
    NoSteering(io::Error),
    /// Anything else.
    #[error("UDP socket for slot {slot} ({family}): {error}")]
    Socket {
        /// The slot that was asked for.
        slot: u8,
        /// Of which family.
        family: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

/// Who has the port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// The kernel's own Soft-RoCE.
    Rxe,
    /// Another user's socket; only one user can have the port.
    OtherUser {
        /// The user.
        uid: u32,
    },
    /// A process of the same user, or one that we may look at.
    Process {
        /// Its number.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// Cannot be seen from here.
    Unknown,
}

impl Holder {
    /// Looks for whoever has the port, now that binding has failed.
    pub(crate) fn find(v6: bool) -> Holder {
        let sockets = port_table::sockets_on(ROCE_PORT, v6).unwrap_or_default();
        let process = sockets
            .iter()
            .find_map(|socket| port_table::process_with(socket.inode));
        if let Some((pid, name)) = process {
            return Holder::Process { pid, name };
        }
        // The kernel's sockets belong to no process; in the table they are root's.
        let of_root = sockets.is_empty() || sockets.iter().any(|socket| socket.uid == 0);
        if of_root && Path::new("/sys/module/rdma_rxe").exists() {
            return Holder::Rxe;
        }
        let ours = rustix::process::geteuid().as_raw();
        match sockets.iter().find(|socket| socket.uid != ours) {
            Some(socket) => Holder::OtherUser { uid: socket.uid },
            None => Holder::Unknown,
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Holder::Rxe => "Delete its links (`rdma link delete NAME`) and unload it \
                 (`modprobe -r rdma_rxe`), or work in a network namespace of your own \
                 (`unshare --map-root-user --net`)."
                .to_owned(),
            Holder::OtherUser { .. } => "One user's ferroced serves a network namespace: stop \
                 that one, have root run a system-wide ferroced and join its group, or work in a \
                 network namespace of your own (`unshare --map-root-user --net`)."
                .to_owned(),
            Holder::Process { pid, .. } => format!(
                "Stop it (`kill {pid}`), or work in a network namespace of your own \
                 (`unshare --map-root-user --net`)."
            ),
            Holder::Unknown => "Find out who has it and stop that, or work in a network \
                 namespace of your own (`unshare --map-root-user --net`)."
                .to_owned(),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Rxe => f.write_str("the kernel's Soft-RoCE (module rdma_rxe) has it"),
            Holder::OtherUser { uid } => {
                write!(f, "user {uid} has it, most likely with a ferroced")
            }
            Holder::Process { pid, name } => write!(f, "process {pid} ({name}) has it"),
            Holder::Unknown => f.write_str("something that cannot be seen from here has it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_cause_and_remedy() {
        let text = |holder| BindError::PortTaken { holder }.to_string();
        let rxe = text(Holder::Rxe);
        assert!(rxe.contains("4791"), "{rxe}");
        assert!(rxe.contains("rdma_rxe"), "{rxe}");
        assert!(rxe.contains("modprobe -r rdma_rxe"), "{rxe}");
        let user = text(Holder::OtherUser { uid: 1007 });
        assert!(user.contains("user 1007"), "{user}");
        assert!(user.contains("system-wide"), "{user}");
        let process = text(Holder::Process {
            pid: 77,
            name: "squatter".to_owned(),
        });
        assert!(process.contains("process 77 (squatter)"), "{process}");
        assert!(process.contains("kill 77"), "{process}");
        assert!(text(Holder::Unknown).contains("ss -ulnpe"));
    }
}
