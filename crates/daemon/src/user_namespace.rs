//! The user namespace of ferroced.

use std::fs;

/// UID of all users that have no UID in a user namespace. In the machine's user namespace it is
/// the UID of the user nobody, like any other.
const OVERFLOW_UID: u32 = 65534;

/// Returns true if this is the machine's user namespace, in which every user has a UID.
pub(crate) fn is_of_the_machine() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map");
    map.is_ok_and(|map| has_all_users(&map))
}

/// Returns true if a UID stands for one user.
pub(crate) fn names_one_user(uid: u32) -> bool {
    uid != OVERFLOW_UID || is_of_the_machine()
}

fn has_all_users(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_map_of_the_machine_has_all_users() {
        assert!(has_all_users("         0          0 4294967295\n"));
        assert!(!has_all_users("0 1000 1\n"));
        assert!(!has_all_users("0 1000 1\n1 100000 65536\n"));
        assert!(!has_all_users(""));
    }

    #[test]
    fn nobody_is_a_user_in_the_namespace_of_the_machine() {
        assert!(names_one_user(0) && names_one_user(1000));
        assert_eq!(names_one_user(OVERFLOW_UID), is_of_the_machine());
    }
}
