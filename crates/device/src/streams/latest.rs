//! The socket that received last, which polls look at first.
//!
//! To read one socket takes one system call. epoll, which names the ready ones of several
//! sockets, takes another one for each message. A program that exchanges messages with one peer
//! at a time, as perftest does beside the connection of its setup, needs epoll only now and then.

/// Polls of the socket that received last for each look at all sockets.
const ONE_SOCKET: u32 = 7;
/// Short messages in a row on one socket, after which the next is expected there, too. Before
/// that, all sockets are looked at after each message.
const STEADY: u32 = 8;

/// The queue pair whose socket received last.
#[derive(Debug, Default)]
pub(super) struct LatestSocket {
    qpn: u32,
    /// Short messages in a row on this socket.
    row: u32,
    /// Polls of this socket alone until all sockets are looked at.
    left: u32,
}

impl LatestSocket {
    /// Returns the queue pair whose socket the next poll looks at; none if all are to be looked at.
    pub(super) fn next_poll(&mut self) -> Option<u32> {
        match self.left {
            0 => {
                self.look_at_all();
                None
            }
            _ => {
                self.left -= 1;
                Some(self.qpn)
            }
        }
    }

    /// Notes that all sockets are looked at.
    pub(super) fn look_at_all(&mut self) {
        self.left = ONE_SOCKET;
    }

    /// Notes that a socket has received. A long message can keep other sockets waiting, so all are
    /// looked at after it.
    pub(super) fn note(&mut self, qpn: u32, is_long: bool) {
        self.row = match qpn == self.qpn && !is_long {
            true => self.row.saturating_add(1),
            false => 0,
        };
        self.qpn = qpn;
        if self.row < STEADY {
            self.left = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls `polls` times, and each time short data arrives on a socket. Returns the looks at all
    /// sockets.
    fn looks(latest: &mut LatestSocket, qpn: u32, polls: u32) -> u32 {
        let mut looks = 0;
        for _ in 0..polls {
            looks += u32::from(latest.next_poll().is_none());
            latest.note(qpn, false);
        }
        looks
    }

    #[test]
    fn ping_pong_on_one_socket_looks_at_others_now_and_then() {
        let mut latest = LatestSocket::default();
        looks(&mut latest, 1, STEADY + 1);
        let polls = 10 * (ONE_SOCKET + 1);
        assert_eq!(looks(&mut latest, 1, polls), 10);
    }

    #[test]
    fn messages_on_several_sockets_are_awaited_on_all() {
        let mut latest = LatestSocket::default();
        for qpn in [1, 2, 1, 2] {
            looks(&mut latest, 1, 2 * STEADY);
            looks(&mut latest, qpn + 2, 1);
            assert_eq!(latest.next_poll(), None, "another socket has just received");
        }
    }

    #[test]
    fn long_message_is_followed_by_a_look_at_all_sockets() {
        let mut latest = LatestSocket::default();
        looks(&mut latest, 1, 2 * STEADY);
        latest.note(1, true);
        assert_eq!(latest.next_poll(), None);
    }

    #[test]
    fn polls_in_vain_look_at_all_sockets_in_turn() {
        let mut latest = LatestSocket::default();
        latest.note(1, false);
        for _ in 0..3 {
            assert_eq!(latest.next_poll(), None);
            for _ in 0..ONE_SOCKET {
                assert_eq!(latest.next_poll(), Some(1));
            }
        }
    }
}
