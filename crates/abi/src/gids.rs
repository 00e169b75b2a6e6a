//! GIDs and P_Keys.
//!
//! GIDs of RoCE links are of type RoCE v2. An iWARP link has one GID, its MAC address. The only
//! P_Key is the default one.

use core::ffi::{c_int, c_uint};

use ferroce_device::LinkInfo;

use crate::arguments::put;
use crate::context::{context, context_of};
use crate::errno::{minus_one, refuse};
use crate::ffi::*;
use crate::limits::GID_TABLE;
use crate::provoke::provoke;
use crate::query::copy_out;

/// The default P_Key, the same in either byte order.
const DEFAULT_PKEY: u16 = 0xffff;

/// The GID types of `ibv_query_gid_type`.
type SysfsGidType = c_uint;
const SYSFS_IB_OR_ROCE_V1: SysfsGidType = 0;
const SYSFS_ROCE_V2: SysfsGidType = 1;

fn entry(link: &LinkInfo, index: u32) -> Option<ibv_gid_entry> {
    if link.is_iwarp() {
        return (index == 0).then(|| ibv_gid_entry {
            gid: ibv_gid {
                raw: link.mac_gid(),
            },
            gid_index: 0,
            port_num: 1,
            gid_type: IBV_GID_TYPE_IB,
            ndev_ifindex: link.ifindex,
        });
    }
    let gid = link.gid(index)?;
    Some(ibv_gid_entry {
        gid: ibv_gid { raw: gid.raw() },
        gid_index: index,
        port_num: 1,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: gid.ifindex,
    })
}

/// Returns an index that is inside the table; the entry may be empty.
fn table_index(index: c_int) -> Option<u32> {
    (0..GID_TABLE).contains(&index).then_some(index as u32)
}

/// Refuses indexes other than 0 on a link of type siw, whose table has one entry.
fn check_index(link: &LinkInfo, call: &str, index: u32) -> Result<(), c_int> {
    match index {
        0 => Ok(()),
        _ if !link.is_iwarp() => Ok(()),
        _ => Err(refuse(
            libc::EINVAL,
            format_args!("{call}: index {index}: a link of type siw has one GID, index 0"),
        )),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    provoke!("ibv_query_gid" => minus_one);
    let (1, Some(index)) = (port_num, table_index(index)) else {
        return minus_one(refuse(
            libc::EINVAL,
            format_args!(
                "ibv_query_gid: port {port_num}, index {index}: the device has port 1, with GID indexes below {GID_TABLE}"
            ),
        ));
    };
    let owner = context!(context, "ibv_query_gid: the context is NULL" => minus_one);
    let link = owner.device.link();
    if let Err(errno) = check_index(&link, "ibv_query_gid", index) {
        return minus_one(errno);
    }
    let found = entry(&link, index);
    let found = found.map_or(ibv_gid { raw: [0; 16] }, |entry| entry.gid);
    put!(gid, found, "ibv_query_gid: the place for the GID is NULL" => minus_one);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    gid_type: *mut SysfsGidType,
) -> c_int {
    let index = c_int::try_from(index).ok().and_then(table_index);
    let (1, Some(index)) = (port_num, index) else {
        return minus_one(refuse(
            libc::EINVAL,
            format_args!(
                "GID type: port {port_num}: the device has port 1, with GID indexes below {GID_TABLE}"
            ),
        ));
    };
    let owner = context!(context, "GID type: the context is NULL" => minus_one);
    let link = owner.device.link();
    if let Err(errno) = check_index(&link, "GID type", index) {
        return minus_one(errno);
    }
    let found = match link.gid(index) {
        Some(_) if !link.is_iwarp() => SYSFS_ROCE_V2,
        _ => SYSFS_IB_OR_ROCE_V1,
    };
    put!(gid_type, found, "GID type: the place for the type is NULL" => minus_one);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    provoke!("ibv_query_gid" => errno);
    let index = c_int::try_from(gid_index).ok().and_then(table_index);
    let (1, Some(index), 0) = (port_num, index, flags) else {
        return refuse(
            libc::EINVAL,
            format_args!(
                "GID entry: port {port_num}, index {gid_index}, flags {flags:#x}: the device has port 1, with GID indexes below {GID_TABLE}, and flags must be 0"
            ),
        );
    };
    let link = context!(context, "GID entry: the context is NULL" => errno)
        .device
        .link();
    if let Err(errno) = check_index(&link, "GID entry", index) {
        return errno;
    }
    match entry(&link, index) {
        None => refuse(
            libc::ENODATA,
            format_args!("GID {gid_index} is empty; `ferroce gids` lists those that are not"),
        ),
        Some(entry) => {
            // SAFETY: the program has room for an entry of `entry_size` bytes.
            unsafe { copy_out(&entry, to.cast(), entry_size) };
            0
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    if flags != 0 || entry_size == 0 {
        let why = format_args!(
            "GID table: flags {flags:#x}, entries of {entry_size} bytes: flags must be 0 and entries not empty"
        );
        return -(refuse(libc::EINVAL, why) as isize);
    }
    let link = context!(context, "GID table: the context is NULL" => negative_size)
        .device
        .link();
    let indexes: Vec<u32> = match link.is_iwarp() {
        true => vec![0],
        false => link.gids.iter().map(|gid| gid.index).collect(),
    };
    if indexes.len() > max_entries {
        let why = format_args!(
            "{} GIDs do not fit into {max_entries} entries",
            indexes.len()
        );
        return -(refuse(libc::EINVAL, why) as isize);
    }
    let table = indexes.iter().filter_map(|index| entry(&link, *index));
    let mut written = 0;
    for (place, entry) in table.enumerate() {
        // SAFETY: the program has room for `max_entries` entries of `entry_size` bytes, and
        // there are at most `max_entries`.
        unsafe {
            let to = entries.cast::<u8>().add(place * entry_size);
            copy_out(&entry, to.cast(), entry_size);
        }
        written += 1;
    }
    written
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut __be16,
) -> c_int {
    if (port_num, index) != (1, 0) {
        return minus_one(refuse(
            libc::EINVAL,
            format_args!(
                "ibv_query_pkey: port {port_num}, index {index}: there is one P_Key, index 0 of port 1"
            ),
        ));
    }
    // SAFETY: the program passes NULL, or a context that it has not closed.
    if unsafe { is_iwarp(context) } {
        return minus_one(refuse(libc::ENOENT, NO_PKEYS));
    }
    put!(pkey, DEFAULT_PKEY, "ibv_query_pkey: the place for the P_Key is NULL" => minus_one);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port_num: u8,
    pkey: __be16,
) -> c_int {
    if (port_num, pkey) != (1, DEFAULT_PKEY) {
        return minus_one(refuse(
            libc::EINVAL,
            format_args!(
                "P_Key {:#06x} of port {port_num}: port 1 has the default P_Key only",
                u16::from_be(pkey)
            ),
        ));
    }
    // SAFETY: the program passes NULL, or a context that it has not closed.
    if unsafe { is_iwarp(context) } {
        return minus_one(refuse(libc::ENOENT, NO_PKEYS));
    }
    0
}

const NO_PKEYS: &str = "a link of type siw has no P_Keys";

/// Returns true for the context of a link of type siw.
///
/// # Safety
///
/// The context is open, or NULL.
unsafe fn is_iwarp(context: *mut ibv_context) -> bool {
    // SAFETY: the context is open if it is not NULL: see `# Safety`.
    !context.is_null() && unsafe { context_of(context) }.device.link().is_iwarp()
}
