//! `ibv_read_sysfs_file`. Files of links need not exist: their contents come from ferroced.

use core::ffi::{CStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ferroce_device::LinkInfo;

use crate::device_list::device_named;
use crate::errno::{minus_one, refuse};

/// The directory of devices in sysfs.
const CLASS: &str = "/sys/class/infiniband/";

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() || buf.is_null() || size == 0 {
        return minus_one(refuse(
            libc::EINVAL,
            "ibv_read_sysfs_file: an argument is NULL, or the buffer has 0 bytes",
        ));
    }
    // SAFETY: the program's arguments are strings, and not NULL as checked above.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let contents = match ours(dir, file) {
        Some(contents) => contents.ok_or_else(|| {
            let why = format_args!("ibv_read_sysfs_file: {dir:?} has no file {file:?}");
            refuse(libc::ENOENT, why)
        }),
        None => elsewhere(dir, file, size),
    };
    let mut contents = match contents {
        Ok(contents) => contents,
        Err(errno) => return minus_one(errno),
    };
    if contents.last() == Some(&b'\n') {
        contents.pop();
    }
    if contents.len() >= size {
        return minus_one(refuse(
            libc::EINVAL,
            format_args!(
                "ibv_read_sysfs_file: {} bytes do not fit into {size}",
                contents.len()
            ),
        ));
    }
    // SAFETY: the program's buffer has `size` bytes, more than the contents.
    unsafe {
        buf.cast::<u8>()
            .copy_from_nonoverlapping(contents.as_ptr(), contents.len());
        buf.add(contents.len()).write(0);
    }
    contents.len() as c_int
}

/// Returns a file of a link: `None` if the path is of no link, `Some(None)` if the link has
/// no such file.
fn ours(dir: &CStr, file: &CStr) -> Option<Option<Vec<u8>>> {
    let path = format!("{}/{}", dir.to_str().ok()?, file.to_str().ok()?);
    let (name, file) = path.strip_prefix(CLASS)?.split_once('/')?;
    let device = device_named(name)?;
    let link = device.link();
    Some(attribute(&link, file).map(String::into_bytes))
}

/// Reads a file of the file system.
fn elsewhere(dir: &CStr, file: &CStr, size: usize) -> Result<Vec<u8>, c_int> {
    use std::io::Read;
    let part = |text: &CStr| Path::new(std::ffi::OsStr::from_bytes(text.to_bytes())).to_owned();
    let read = || {
        let mut contents = Vec::new();
        let opened = std::fs::File::open(part(dir).join(part(file)))?;
        opened
            .take((size as u64).saturating_add(1))
            .read_to_end(&mut contents)?;
        Ok(contents)
    };
    read().map_err(|error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO))
}

/// Returns the contents that the kernel's file would have for a link.
fn attribute(link: &LinkInfo, file: &str) -> Option<String> {
    if let Some(file) = file.strip_prefix("ports/1/") {
        return port_attribute(link, file);
    }
    Some(match file {
        "node_type" if link.kind == "siw" => "4: RNIC".into(),
        "node_type" => "1: CA".into(),
        "node_guid" | "sys_image_guid" => colons(&link.guid()),
        "node_desc" => link.kind.clone(),
        "fw_ver" => env!("CARGO_PKG_VERSION").into(),
        "parent" => link.netdev.clone(),
        _ => return None,
    })
}

fn port_attribute(link: &LinkInfo, file: &str) -> Option<String> {
    let gid = |index: &str| link.gid(index.parse().ok()?);
    Some(match file.rsplit_once('/') {
        Some(("gids", index)) => match gid(index) {
            Some(gid) => colons(&gid.raw()),
            None => colons(&[0; 16]),
        },
        Some(("gid_attrs/types", index)) => gid(index).map(|_| "RoCE v2".into())?,
        Some(("gid_attrs/ndevs", index)) => gid(index)?.netdev.clone(),
        Some(("pkeys", "0")) => "0xffff".into(),
        _ => match file {
            "state" if link.up && link.carrier => "4: ACTIVE".into(),
            "state" => "1: DOWN".into(),
            "phys_state" => match (link.up, link.carrier) {
                (true, true) => "5: LinkUp".into(),
                (true, false) => "2: Polling".into(),
                (false, _) => "3: Disabled".into(),
            },
            "lid" => format!("{:#x}", link.lid()),
            "sm_lid" => "0x0".into(),
            "lid_mask_count" | "sm_sl" => "0".into(),
            "cap_mask" => "0x00010000".into(),
            "link_layer" => "Ethernet".into(),
            _ => return None,
        },
    })
}

/// Formats bytes as groups of two with colons between them.
fn colons(bytes: &[u8]) -> String {
    let groups: Vec<String> = bytes
        .chunks(2)
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    groups.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_formatted_as_in_sysfs() {
        let guid = [0x50, 0x54, 0, 0xff, 0xfe, 0xd5, 0xe0, 0xfb];
        assert_eq!(colons(&guid), "5054:00ff:fed5:e0fb");
    }

    #[test]
    fn other_files_are_read_from_the_file_system() {
        let mut buffer = [1; 64];
        let (dir, file) = (c"/proc/self", c"comm");
        // SAFETY: the arguments are strings, and the buffer has that length.
        let length = unsafe {
            ibv_read_sysfs_file(
                dir.as_ptr(),
                file.as_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
        assert!(length > 0);
        assert_eq!(buffer[length as usize], 0, "a zero instead of the newline");
        // SAFETY: the arguments are strings, and the buffer has that length.
        let none = unsafe {
            ibv_read_sysfs_file(
                dir.as_ptr(),
                c"no".as_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
        assert_eq!(none, -1);
        // SAFETY: the arguments are strings, and the buffer is longer than the contents.
        let whole = unsafe {
            ibv_read_sysfs_file(dir.as_ptr(), file.as_ptr(), buffer.as_mut_ptr(), usize::MAX)
        };
        assert_eq!(whole, length, "a length without a number above it");
    }
}
