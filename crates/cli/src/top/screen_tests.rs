use super::super::tables::tests::{qp, sample, start};
use super::*;

/// Returns a screen with three queue pairs, in the order of their packets: 3, 2, 1.
fn screen() -> Screen {
    let mut screen = Screen::new(String::new());
    let at = start();
    let of = |seconds: u64| {
        let qps = [
            (0x1_0001, "reader"),
            (0x1_0002, "writer"),
            (0x1_0003, "writer"),
        ];
        let qps = qps.map(|(number, name)| qp(number, name, number * seconds as u32));
        sample(at + std::time::Duration::from_secs(seconds), qps.into())
    };
    screen.update(of(0));
    screen.update(of(1));
    screen
}

fn texts(screen: &mut Screen) -> Vec<String> {
    let lines = screen.lines(80, 24);
    assert_eq!(lines.len(), 24);
    for line in &lines {
        assert_eq!(line.text.chars().count(), 80, "{line:?}");
    }
    lines.into_iter().map(|line| line.text).collect()
}

fn qpns(screen: &mut Screen) -> Vec<String> {
    let lines = texts(screen);
    let rows = lines.iter().filter(|line| line.starts_with("0x"));
    rows.map(|row| row[..8].to_owned()).collect()
}

fn selected(screen: &mut Screen) -> String {
    let lines = screen.lines(80, 24);
    let line = lines.iter().find(|line| line.style == Style::Reverse);
    line.expect("a selected row").text[..8].to_owned()
}

#[test]
fn rows_are_sorted_by_any_column() {
    let mut screen = screen();
    assert_eq!(qpns(&mut screen), ["0x010003", "0x010002", "0x010001"]);
    screen.press(Key::Char('r'));
    assert_eq!(qpns(&mut screen), ["0x010001", "0x010002", "0x010003"]);
    // From packets sent to programs.
    for _ in 0..3 {
        screen.press(Key::Char('<'));
    }
    assert!(texts(&mut screen)[2].contains("^PROGRAM"));
    screen.press(Key::Char('r'));
    assert_eq!(qpns(&mut screen), ["0x010002", "0x010003", "0x010001"]);
}

#[test]
fn filter_admits_rows_that_contain_it() {
    let mut screen = screen();
    screen.press(Key::Char('/'));
    for typed in "READx".chars() {
        screen.press(Key::Char(typed));
    }
    screen.press(Key::Backspace);
    assert!(texts(&mut screen)[23].starts_with(" filter: READ_"));
    screen.press(Key::Enter);
    assert_eq!(qpns(&mut screen), ["0x010001"]);
    assert!(texts(&mut screen)[0].contains("filter: READ"));
    screen.press(Key::Escape);
    assert_eq!(qpns(&mut screen).len(), 3);
}

#[test]
fn selection_stays_with_its_queue_pair() {
    let mut screen = screen();
    assert_eq!(selected(&mut screen), "0x010003");
    screen.press(Key::Down);
    assert_eq!(selected(&mut screen), "0x010002");
    screen.press(Key::End);
    assert_eq!(selected(&mut screen), "0x010001");
    screen.press(Key::Char('r'));
    assert_eq!(selected(&mut screen), "0x010001");
    assert_eq!(
        screen.press(Key::Char('e')),
        Action::Explain {
            pid: 42,
            qpn: 0x1_0001
        }
    );
    screen.explain("  it failed\n  remedy: look");
    let lines = texts(&mut screen);
    assert!(
        lines[2].contains("queue pair 0x010001 of reader/42 on rxe0"),
        "{lines:?}"
    );
    assert!(lines[3].starts_with("  it failed"), "{lines:?}");
    screen.press(Key::Escape);
    assert_eq!(qpns(&mut screen).len(), 3);
    assert_eq!(screen.press(Key::Char('q')), Action::Quit);
}

#[test]
fn keys_choose_the_table() {
    let mut screen = screen();
    screen.press(Key::Char('2'));
    let lines = texts(&mut screen);
    assert!(lines[0].contains("[2 programs]"), "{lines:?}");
    assert!(lines[3].contains("writer"), "{lines:?}");
    screen.press(Key::Tab);
    let lines = texts(&mut screen);
    assert!(
        lines[3].starts_with("rxe0       lo         DOWN"),
        "{lines:?}"
    );
    assert_eq!(screen.press(Key::Char('e')), Action::None);
    assert!(texts(&mut screen)[1].contains("choose a queue pair"));
}

#[test]
fn long_tables_scroll_and_any_size_is_drawn() {
    let mut screen = Screen::new(String::new());
    let qps = (0..100).map(|number| qp(0x1_0000 + number, "many", 0));
    screen.update(sample(start(), qps.collect()));
    assert_eq!(qpns(&mut screen).len(), 20);
    screen.press(Key::End);
    assert_eq!(selected(&mut screen), "0x010063");
    screen.press(Key::PageUp);
    assert_eq!(selected(&mut screen), "0x01004f");
    for (width, height) in [(1, 1), (10, 2), (40, 5), (200, 60), (80, 4)] {
        let lines = screen.lines(width, height);
        assert_eq!(lines.len(), height);
        assert!(lines.iter().all(|line| line.text.chars().count() == width));
    }
    let wide = screen.lines(130, 24);
    assert!(wide[2].text.contains("PEER"), "{wide:?}");
}

#[test]
fn control_characters_of_a_program_are_not_drawn() {
    let mut screen = Screen::new(String::new());
    screen.update(sample(start(), vec![qp(0x1_0001, "\x1b[2J", 0)]));
    assert!(texts(&mut screen)[3].contains("?[2J"));
}

#[test]
fn story_is_wrapped_at_spaces() {
    assert_eq!(wrap("  one two three", 10), ["  one two", "    three"]);
    assert_eq!(wrap("", 10), [""]);
    assert_eq!(wrap("longer-than-the-line", 10), ["longer-than-the-line"]);
}
