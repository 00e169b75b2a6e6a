//! Calls that do not exist on links of type siw. They get the errno of the kernel's siw.

use core::ffi::c_int;

use ferroce_device::Device;

use crate::errno::refuse;

/// Refuses a call with EOPNOTSUPP if the device is that of a link of type siw. `what` is the
/// missing part of iWARP.
pub(crate) fn check_roce(device: &Device, call: &str, what: &str) -> Result<(), c_int> {
    let link = device.link();
    match link.is_iwarp() {
        false => Ok(()),
        true => Err(refuse(
            libc::EOPNOTSUPP,
            format_args!(
                "{call}: link {} is of type siw, and iWARP has no {what}; use a link of type rxe",
                link.name
            ),
        )),
    }
}
