//! Resolves `..` in a path as the kernel would if sysfs had the devices.
//!
//! A device in `/sys/class/infiniband` is a symbolic link into `/sys/devices/virtual`, so
//! `/sys/class/infiniband/rxe0/../..` is `/sys/devices/virtual`. ferroced's files lie in
//! another directory, so the kernel cannot resolve a `..` that leaves them.

use crate::paths::{is_above, is_inside};
use crate::text::Text;

/// Maximum number of symbolic links in a path, as in the kernel.
const MOST_LINKS: u32 = 40;

/// The type of a file below the root.
#[allow(clippy::large_enum_variant, reason = "this library must not allocate")]
pub(crate) enum Entry {
    Folder,
    /// A symbolic link with this target.
    Link(Text),
    /// Another file, or no file.
    Other,
}

/// Resolves `path`, which begins at the directory `from`. The result has no `..` as far as it
/// lies within redirected directories or their parents. `look` returns the type of a
/// redirected file. The result is `None` if the path is too long or has too many links.
pub(crate) fn walk(from: &[u8], path: &[u8], look: impl Fn(&Text) -> Entry) -> Option<Text> {
    let mut at = Text::of(&[from])?;
    let mut rest = Text::of(&[path])?;
    let mut links = 0;
    loop {
        let ours = is_inside(at.bytes()) || is_above(at.bytes());
        let (part, after) = first_part(rest.bytes());
        if !ours || !climbs(rest.bytes()) {
            return finish(at, rest.bytes());
        }
        match part {
            b"." => {}
            b".." => at.pop(),
            part => {
                at.push(b"/")?;
                at.push(part)?;
                let entry = match is_inside(at.bytes()) {
                    true => look(&at),
                    false => Entry::Folder,
                };
                match entry {
                    Entry::Folder => {}
                    // The kernel reports the error.
                    Entry::Other => return finish(at, after),
                    Entry::Link(target) => {
                        links += 1;
                        if links > MOST_LINKS {
                            return None;
                        }
                        match target.bytes().first() {
                            Some(b'/') => at = Text::new(),
                            _ => at.pop(),
                        }
                        rest = Text::of(&[target.bytes(), b"/", after])?;
                        continue;
                    }
                }
            }
        }
        rest = Text::of(&[after])?;
    }
}

/// Appends the rest of a path to a directory.
fn finish(mut at: Text, rest: &[u8]) -> Option<Text> {
    if at.bytes().is_empty() || !rest.is_empty() {
        at.push(b"/")?;
    }
    let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
    at.push(&rest[slashes..])?;
    Some(at)
}

/// Splits a path after its first component.
fn first_part(path: &[u8]) -> (&[u8], &[u8]) {
    let start = path.iter().take_while(|byte| **byte == b'/').count();
    let path = &path[start..];
    let end = path.iter().position(|byte| *byte == b'/');
    path.split_at(end.unwrap_or(path.len()))
}

/// True if a path contains `..`.
fn climbs(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|part| part == b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walked(from: &str, path: &str) -> String {
        let look = |at: &Text| match at.bytes() {
            b"/sys/class/infiniband/rxe0" => {
                Entry::Link(Text::of(&[b"../../devices/virtual/infiniband/rxe0"]).unwrap())
            }
            b"/dev/infiniband/uverbs0" => Entry::Link(Text::of(&[b"/dev/null"]).unwrap()),
            b"/sys/class/infiniband/loop" => Entry::Link(Text::of(&[b"loop"]).unwrap()),
            at if at.ends_with(b"nothing") || at.ends_with(b"state") => Entry::Other,
            _ => Entry::Folder,
        };
        match walk(from.as_bytes(), path.as_bytes(), look) {
            Some(text) => String::from_utf8(text.bytes().to_vec()).unwrap(),
            None => "none".into(),
        }
    }

    #[test]
    fn parent_of_a_device_is_in_sys_devices() {
        let class = "/sys/class/infiniband";
        for (path, end) in [
            ("rxe0", "/sys/class/infiniband/rxe0"),
            ("rxe0/ports/1", "/sys/class/infiniband/rxe0/ports/1"),
            ("rxe0/..", "/sys/devices/virtual/infiniband"),
            ("rxe0/../..", "/sys/devices/virtual"),
            ("rxe0/../../net/lo/mtu", "/sys/devices/virtual/net/lo/mtu"),
            (
                "rxe0/../rxe0/ports",
                "/sys/devices/virtual/infiniband/rxe0/ports",
            ),
            ("..", "/sys/class"),
            ("../net/lo/..", "/sys/class/net/lo/.."),
            ("../infiniband/rxe0", "/sys/class/infiniband/rxe0"),
            ("../../../../..", "/"),
            ("./rxe0/../", "/sys/devices/virtual/infiniband/"),
            (
                "rxe0/nothing/..",
                "/sys/devices/virtual/infiniband/rxe0/nothing/..",
            ),
            (
                "rxe0/state/../x",
                "/sys/devices/virtual/infiniband/rxe0/state/../x",
            ),
            ("loop/..", "none"),
        ] {
            assert_eq!(walked("", &format!("{class}/{path}")), end, "{path}");
            assert_eq!(walked(class, path), end, "{path}");
        }
        assert_eq!(walked("", "/dev/infiniband/../null"), "/dev/null");
        assert_eq!(walked("", "/dev/infiniband/uverbs0/.."), "/dev/null/..");
    }
}
