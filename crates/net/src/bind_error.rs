//! Errors of creating a slot's sockets, each with its remedy.

use std::fmt;
use std::io;
use std::path::Path;

use ferroce_wire::ROCE_PORT;

use crate::port_table;

/// Reason why the sockets of a slot cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process or the kernel has bound the port.
    #[error(
        "UDP port {ROCE_PORT}, which RoCEv2 needs, is taken in this network namespace: {holder}. \
         {remedy} (`ss -ulnpe 'sport = :{ROCE_PORT}'`, as root, shows the process.)",
        remedy = .holder.remedy()
    )]
    PortTaken {
        /// The holder of the port, as far as this user can see it.
        holder: Holder,
    },
    /// The number of sockets in the group is not the slot's number, so the new socket
    /// would receive another slot's packets.
    #[error(
        "slot {slot} cannot be created: the group on UDP port {ROCE_PORT} has {found} sockets \
         ({family}), so a new one would serve slot {found}. {} the group, and does not hand it over: it \
         is a ferroced with another XDG_RUNTIME_DIR or FERROCE_RUNTIME_DIR, or is left from before \
         ferroced was restarted; end it",
        holder.as_ref().map_or_else(
            || "Another ferroced of this user, or a program that outlived one, holds".to_owned(),
            |(pid, name)| format!("Process {pid} ({name}) holds"),
        )
    )]
    WrongPlace {
        /// The requested slot.
        slot: u8,
        /// Number of sockets in the group.
        found: usize,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// PID and name of a process that has one of them open, if this user can see it.
        holder: Option<(u32, String)>,
    },
    /// The kernel does not support the BPF program that steers packets to slots.
    #[error(
        "this kernel does not let a BPF program choose among the sockets of a port \
         (SO_ATTACH_REUSEPORT_CBPF, Linux 4.5): {0}"
    )]
    NoSteering(io::Error),
    /// Any other error of a system call.
    #[error("UDP socket for slot {slot} ({family}): {error}")]
    Socket {
        /// The requested slot.
        slot: u8,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

/// Holder of UDP port 4791.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// The kernel's own Soft-RoCE.
    Rxe,
    /// Another user's socket. Only sockets of one user can share the port.
    OtherUser {
        /// The user.
        uid: u32,
    },
    /// A process whose descriptors this user may inspect.
    Process {
        /// Its PID.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// A holder that this user cannot see.
    Unknown,
}

impl Holder {
    /// Finds the holder of the port, after `bind` has failed.
    pub(crate) fn find(v6: bool) -> Holder {
        let sockets = port_table::sockets_on(ROCE_PORT, v6).unwrap_or_default();
        let process = sockets
            .iter()
            .find_map(|socket| port_table::process_with(socket.inode));
        if let Some((pid, name)) = process {
            return Holder::Process { pid, name };
        }
        // Sockets of the kernel belong to no process; their owner is root.
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

    /// Returns the remedy for the user.
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
            Holder::Unknown => "Find the process that has it and stop it, or work in a network \
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
            Holder::Unknown => f.write_str("a process that this user cannot see has it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_holder_and_remedy() {
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
