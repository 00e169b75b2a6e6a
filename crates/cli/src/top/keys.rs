//! Keys, as a terminal sends them.

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Escape,
    Tab,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Interrupt,
}

/// Returns the keys in the bytes of a terminal. Unknown sequences are ignored.
pub(super) fn parse(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let mut rest = text.as_ref();
    let mut keys = Vec::new();
    while let Some(first) = rest.chars().next() {
        if let Some(sequence) = rest.strip_prefix("\x1b[").or(rest.strip_prefix("\x1bO")) {
            let end = sequence.find(|c: char| ('@'..='~').contains(&c));
            let Some(end) = end else {
                break;
            };
            keys.extend(of_sequence(&sequence[..=end]));
            rest = &sequence[end + 1..];
            continue;
        }
        rest = &rest[first.len_utf8()..];
        match first {
            '\x1b' => keys.push(Key::Escape),
            '\r' | '\n' => keys.push(Key::Enter),
            '\t' => keys.push(Key::Tab),
            '\x7f' | '\x08' => keys.push(Key::Backspace),
            '\x03' => keys.push(Key::Interrupt),
            other if !other.is_control() => keys.push(Key::Char(other)),
            _ => {}
        }
    }
    keys
}

fn of_sequence(sequence: &str) -> Option<Key> {
    match sequence {
        "A" => Some(Key::Up),
        "B" => Some(Key::Down),
        "H" | "1~" => Some(Key::Home),
        "F" | "4~" => Some(Key::End),
        "5~" => Some(Key::PageUp),
        "6~" => Some(Key::PageDown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_and_characters_are_keys() {
        let keys = parse(b"j\x1b[A\x1bOB\x1b[5~\r\x1b[15~q\x03");
        let expected = [
            Key::Char('j'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::Enter,
            Key::Char('q'),
            Key::Interrupt,
        ];
        assert_eq!(keys, expected);
        assert_eq!(parse(b"\x1b"), [Key::Escape]);
        assert_eq!(parse(b"\x1b[1"), []);
        assert_eq!(parse("ä".as_bytes()), [Key::Char('ä')]);
    }
}
