//! ibverbs-utils: programs that list devices and watch their events.

use std::time::Duration;

use anyhow::{Result, ensure};
use ferroce_testnet::netdev;

use crate::case::Case;
use crate::place::Place;
use ferroce_harness::Running;

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::single_command("ibv_devices", "ibv_devices").expect("rxe0"),
        Case::single_command("ibv_devinfo", "ibv_devinfo -l").expect("2 HCAs found"),
        Case::single_command("ibv_devinfo", "ibv_devinfo -d rxe0").expect("PORT_ACTIVE"),
        Case::single_command("ibv_devinfo", "ibv_devinfo -v")
            .expect("GID[  1]:\t\t::ffff:10.77.0.1, RoCE v2")
            .expect("max_qp:")
            .expect("link_layer:\t\tEthernet"),
        Case::script("ibv_asyncwatch", "ibv_asyncwatch -d rxe0", watch),
    ]
}

/// Checks that ibv_asyncwatch reports the link going down and up.
fn watch(place: &Place) -> Result<String> {
    let mut command = place
        .user
        .program(&["stdbuf", "-o0", "ibv_asyncwatch", "-d", "rxe0"]);
    let mut watcher = Running::spawn(&mut command, &std::env::temp_dir(), "ibv_asyncwatch")?;
    watcher.wait_for_output("async event FD", PATIENCE)?;
    netdev::set_down("veth0");
    watcher.wait_for_output("IBV_EVENT_PORT_ERR", PATIENCE)?;
    netdev::set_up("veth0");
    watcher.wait_for_output("IBV_EVENT_PORT_ACTIVE", PATIENCE)?;
    // The netdev loses its IPv6 addresses when it goes down. Restore them for later cases.
    netdev::add_address("veth0", "fd77::1/64");
    netdev::await_link_local("veth0");
    let said = watcher.output()?;
    ensure!(
        said.contains("rxe0"),
        "ibv_asyncwatch does not name the device"
    );
    Ok(said)
}
