//! Refusals of requests: an errno for programs, and a reason with a remedy for users.

use std::fmt::Display;
use std::io;

use ferroce_control::Reply;

/// The refusal of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    pub(crate) errno: i32,
    pub(crate) message: String,
}

impl Refusal {
    /// Returns a refusal whose message starts with the system's text for the errno, as
    /// iproute2 prints it.
    pub(crate) fn new(errno: i32, reason: impl Display) -> Refusal {
        let words = io::Error::from_raw_os_error(errno).to_string();
        // Removes " (os error N)", which std adds.
        let words = words.split(" (os error").next().unwrap_or_default();
        Refusal {
            errno,
            message: format!("{words}: {reason}"),
        }
    }

    /// Returns the refusal for a system error of operation `what`.
    pub(crate) fn system(what: &str, error: &io::Error) -> Refusal {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Refusal {
            errno,
            message: format!("{what}: {error}"),
        }
        .with_remedy()
    }

    /// Adds the remedy for the errno, if there is a general one.
    pub(crate) fn with_remedy(mut self) -> Refusal {
        if matches!(self.errno, libc::EMFILE | libc::ETOOMANYREFS) {
            self.message += "; ferroced needs a higher limit of open files (`ulimit -n`, or \
                LimitNOFILE= of its service): raise it and restart ferroced; programs keep \
                running";
        }
        self
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Reply {
        Reply::error(refusal.errno, refusal.message)
    }
}

/// Returns a list for messages: at most 12 items, and the number of others.
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
    fn message_starts_with_the_text_of_the_errno() {
        let refusal = Refusal::new(libc::EEXIST, "link rxe0");
        assert_eq!(refusal.message, "File exists: link rxe0");
    }

    #[test]
    fn long_list_is_cut() {
        assert_eq!(listed(["lo", "eth0"]), "lo, eth0");
        assert_eq!(
            listed(0..14),
            "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more"
        );
        assert_eq!(listed([0; 0]), "");
    }
}
