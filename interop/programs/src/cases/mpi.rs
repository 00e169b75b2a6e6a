//! Open MPI over UCX: two ranks that communicate through a link.

use crate::case::Case;

/// The program of the ranks: messages of many sizes, a sum, and counting in remote memory.
const RANKS: &str = include_str!("ranks.py");

pub(super) fn cases() -> Vec<Case> {
    let links = ["rxe0", "rxe1"];
    let each = |link| ["rc_v", "ud_v"].map(|transport| case(link, transport));
    links.into_iter().flat_map(each).collect()
}

fn case(link: &str, transport: &str) -> Case {
    // Only UCX, and UCX only on the link.
    let mpirun = "mpirun --oversubscribe -np 2 --mca pml ucx --mca osc ucx --mca btl ^openib,ofi";
    let mut words: Vec<String> = mpirun.split(' ').map(str::to_owned).collect();
    words.extend(["/usr/bin/python3", "-c", RANKS].map(str::to_owned));
    Case::command("mpirun", format!("{mpirun} python3 ranks.py"), words)
        .with("UCX_TLS", format!("{transport},self"))
        .with("UCX_NET_DEVICES", format!("{link}:1"))
        .with("UCX_IB_GID_INDEX", 1)
        .expect("2 ranks, sum 3, counted 20\n")
}
