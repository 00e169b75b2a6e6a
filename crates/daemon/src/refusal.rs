//! Why a request is refused: an errno for programs, words and a remedy for people.

use std::fmt::Display;
use std::io;

use ferroce_control::Reply;

/// A no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    pub(crate) errno: i32,
    pub(crate) message: String,
}

impl Refusal {
    /// With the system's words for the errno in front, as iproute2 would print them.
    pub(crate) fn new(errno: i32, reason: impl Display) -> Refusal {
        let words = io::Error::from_raw_os_error(errno).to_string();
        // std adds " (os error N)", which helps nobody.
        let words = words.split(" (os error").next().unwrap_or_default();
        Refusal {
            errno,
            message: format!("{words}: {reason}"),
        }
    }

    /// What the system said about `what`.
    pub(crate) fn system(what: &str, error: &io::Error) -> Refusal {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Refusal {
            errno,
            message: format!("{what}: {error}"),
        }
        .with_remedy()
    }

    /// Adds what helps against this errno, if anything general does.
    pub(crate) fn with_remedy(mut self) -> Refusal {
        if matches!(self.errno, libc::EMFILE | libc::ETOOMANYREFS) {
            self.message += "; ferroced needs a higher limit of open files (`ulimit -n`, or \
                LimitNOFILE= of its service): raise it and restart ferroced, programs go on \
                meanwhile";
        }
        self
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Reply {
        Reply::error(refusal.errno, refusal.message)
    }
}

/// A list for people: at most some, and how many more.
pub(crate) fn listed<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    const SHOWN: usize = 12;
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    let mut text = items[..items.len().min(SHOWN)].join(", ");
    if items.len() > SHOWN {
        text += &format!(" and {} more", items.len() - SHOWN);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_like_those_of_other_tools() {
        let refusal = Refusal::new(libc::EEXIST, "link rxe0");
        assert_eq!(refusal.message, "File exists: link rxe0");
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(listed(["lo", "eth0"]), "lo, eth0");
        assert_eq!(
            listed(0..14),
            "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more"
        );
        assert_eq!(listed([0; 0]), "");
    }
}
