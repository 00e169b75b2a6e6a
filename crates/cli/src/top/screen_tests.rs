use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Modifier;

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

/// Draws the screen at a size.
fn drawn(screen: &mut Screen, width: u16, height: u16) -> Buffer {
    let backend = TestBackend::new(width, height);
    let mut terminal = Terminal::new(backend).expect("a terminal");
    let frame = terminal.draw(|frame| screen.draw(frame));
    frame.expect("a frame").buffer.clone()
}

/// Returns the text of each line.
fn lines_of(buffer: &Buffer) -> Vec<String> {
    let cells = buffer.content().chunks(buffer.area.width.into());
    cells
        .map(|line| line.iter().map(|cell| cell.symbol()).collect())
        .collect()
}

fn texts(screen: &mut Screen) -> Vec<String> {
    lines_of(&drawn(screen, 80, 24))
}

fn qpns(screen: &mut Screen) -> Vec<String> {
    let lines = texts(screen);
    let rows = lines.iter().filter(|line| line.starts_with("0x"));
    rows.map(|row| row[..8].to_owned()).collect()
}

fn selected(screen: &mut Screen) -> String {
    let buffer = drawn(screen, 80, 24);
    let is_selected = |y: &u16| buffer[(0, *y)].modifier.contains(Modifier::REVERSED);
    let lines: Vec<u16> = (0..24).filter(is_selected).collect();
    let [line] = lines[..] else {
        panic!("one row is selected, not {lines:?}");
    };
    lines_of(&buffer)[usize::from(line)][..8].to_owned()
}

/// Presses a key.
fn press(screen: &mut Screen, key: KeyCode) -> Action {
    screen.press(key.into())
}

#[test]
fn rows_are_sorted_by_any_column() {
    let mut screen = screen();
    assert_eq!(qpns(&mut screen), ["0x010003", "0x010002", "0x010001"]);
    press(&mut screen, KeyCode::Char('r'));
    assert_eq!(qpns(&mut screen), ["0x010001", "0x010002", "0x010003"]);
    // From packets sent to programs.
    for _ in 0..3 {
        press(&mut screen, KeyCode::Char('<'));
    }
    assert!(texts(&mut screen)[2].contains("^PROGRAM"));
    press(&mut screen, KeyCode::Char('r'));
    assert_eq!(qpns(&mut screen), ["0x010002", "0x010003", "0x010001"]);
}

#[test]
fn filter_admits_rows_that_contain_it() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Char('/'));
    for typed in "READx".chars() {
        press(&mut screen, KeyCode::Char(typed));
    }
    press(&mut screen, KeyCode::Backspace);
    assert!(texts(&mut screen)[23].starts_with(" filter: READ_"));
    press(&mut screen, KeyCode::Enter);
    assert_eq!(qpns(&mut screen), ["0x010001"]);
    assert!(texts(&mut screen)[0].contains("filter: READ"));
    press(&mut screen, KeyCode::Esc);
    assert_eq!(qpns(&mut screen).len(), 3);
}

#[test]
fn selection_stays_with_its_queue_pair() {
    let mut screen = screen();
    assert_eq!(selected(&mut screen), "0x010003");
    press(&mut screen, KeyCode::Down);
    assert_eq!(selected(&mut screen), "0x010002");
    press(&mut screen, KeyCode::End);
    assert_eq!(selected(&mut screen), "0x010001");
    press(&mut screen, KeyCode::Char('r'));
    assert_eq!(selected(&mut screen), "0x010001");
    assert_eq!(
        press(&mut screen, KeyCode::Char('e')),
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
    press(&mut screen, KeyCode::Esc);
    assert_eq!(qpns(&mut screen).len(), 3);
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Action::Quit);
}

#[test]
fn keys_choose_the_table() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Char('2'));
    let lines = texts(&mut screen);
    assert!(lines[0].contains("[2 programs]"), "{lines:?}");
    assert!(lines[3].contains("writer"), "{lines:?}");
    press(&mut screen, KeyCode::Tab);
    let lines = texts(&mut screen);
    assert!(
        lines[3].starts_with("rxe0       lo         DOWN"),
        "{lines:?}"
    );
    assert_eq!(press(&mut screen, KeyCode::Char('e')), Action::None);
    assert!(texts(&mut screen)[1].contains("choose a queue pair"));
}

#[test]
fn long_tables_scroll_and_any_size_is_drawn() {
    let mut screen = Screen::new(String::new());
    let qps = (0..100).map(|number| qp(0x1_0000 + number, "many", 0));
    screen.update(sample(start(), qps.collect()));
    assert_eq!(qpns(&mut screen).len(), 20);
    press(&mut screen, KeyCode::End);
    assert_eq!(selected(&mut screen), "0x010063");
    press(&mut screen, KeyCode::PageUp);
    assert_eq!(selected(&mut screen), "0x01004f");
    for (width, height) in [(1, 1), (10, 2), (40, 5), (200, 60), (80, 4)] {
        drawn(&mut screen, width, height);
    }
    let wide = lines_of(&drawn(&mut screen, 130, 24));
    assert!(wide[2].contains("PEER"), "{wide:?}");
}

#[test]
fn control_characters_of_a_program_are_not_drawn() {
    let mut screen = Screen::new(String::new());
    screen.update(sample(start(), vec![qp(0x1_0001, "\x1b[2J", 0)]));
    assert!(texts(&mut screen)[3].contains(" [2J "));
}

#[test]
fn long_names_end_with_a_mark() {
    let mut screen = Screen::new(String::new());
    screen.update(sample(start(), vec![qp(0x1_0001, "a-very-long-name", 0)]));
    let lines = texts(&mut screen);
    assert!(lines[3].contains(" a-very-lon~ "), "{lines:?}");
}

#[test]
fn story_is_wrapped_at_spaces_and_scrolls() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Char('e'));
    screen.explain("first second third\nfourth");
    let lines = lines_of(&drawn(&mut screen, 14, 8));
    let story: Vec<&str> = lines[3..6].iter().map(|line| line.trim_end()).collect();
    assert_eq!(story, ["first second", "third", "fourth"]);
    press(&mut screen, KeyCode::Down);
    assert!(lines_of(&drawn(&mut screen, 14, 8))[3].starts_with("fourth"));
}

#[test]
fn control_c_quits_in_each_mode() {
    let mut screen = screen();
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for before in [
        KeyCode::Null,
        KeyCode::Char('/'),
        KeyCode::Esc,
        KeyCode::Char('e'),
    ] {
        press(&mut screen, before);
        assert_eq!(screen.press(interrupt), Action::Quit);
    }
}

#[test]
fn escape_and_a_key_at_once_are_both_pressed() {
    let mut screen = Screen::new("reader".into());
    screen.press(KeyEvent::new(KeyCode::Char('/'), KeyModifiers::ALT));
    assert!(texts(&mut screen)[23].starts_with(" filter: _"));
}

#[test]
fn failed_queue_pairs_are_red() {
    let mut screen = Screen::new(String::new());
    let mut bad = qp(0x1_0001, "broken", 0);
    bad.qp.state = "ERR".into();
    // The selected row has colours of its own.
    screen.update(sample(start(), vec![qp(0x1_0000, "well", 0), bad]));
    let buffer = drawn(&mut screen, 80, 24);
    let lines = lines_of(&buffer);
    let row = lines.iter().position(|line| line.contains("broken"));
    let row = row.expect("the row") as u16;
    assert_eq!(buffer[(0, row)].fg, ratatui::style::Color::Red);
}
