//! Programs that find devices in sysfs and /dev.

use crate::case::Case;

pub(super) fn cases() -> Vec<Case> {
    let port = "/sys/class/infiniband/rxe0/ports/1";
    vec![
        Case::single_command("sysfs", "ls /sys/class/infiniband /dev/infiniband")
            .expect("rxe0\nrxe1\n")
            .expect("rdma_cm\nuverbs0\nuverbs1\n"),
        Case::single_command("sysfs", &format!("cat {port}/gid_attrs/types/1")).expect("RoCE v2\n"),
        Case::single_command("sysfs", &format!("cat {port}/gid_attrs/ndevs/1")).expect("veth0\n"),
        Case::single_command("sysfs", "realpath /sys/class/infiniband/rxe0/../..")
            .expect("/sys/devices/virtual\n"),
        Case::single_command("ibstatus", "ibstatus")
            .expect("Infiniband device 'rxe0' port 1 status:")
            .expect("Infiniband device 'rxe1' port 1 status:"),
        Case::single_command("ibstat", "ibstat rxe0")
            .expect("State: Active")
            .expect("Physical state: LinkUp")
            .expect("Link layer: Ethernet"),
    ]
}
