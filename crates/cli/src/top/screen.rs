//! The screen: selection, order, filter, and the lines that show them.

use super::keys::Key;
use super::sample::Sample;
use super::table::{Column, Row};
use super::tables::{History, View};
use super::terminal::{Line, Style};

/// Lines above the rows: title, summary, column titles.
const HEADER: usize = 3;
const KEYS: &str = " q quit  tab view  </> sort  r reverse  / filter  e explain  up/down select";
const KEYS_OF_STORY: &str = " up/down scroll  escape back  q quit";

/// The effect of a key that the screen cannot have by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    /// Show the story of a queue pair.
    Explain {
        pid: u32,
        qpn: u32,
    },
}

/// The part of the screen that keys go to.
#[derive(Debug)]
enum Mode {
    Table,
    /// The user types a filter.
    Filter,
    /// The explanation of a queue pair; the first `top` lines are above the screen.
    Story {
        title: String,
        lines: Vec<String>,
        top: usize,
    },
}

/// Selection and order of one table.
#[derive(Debug, Clone)]
struct Place {
    view: View,
    order: usize,
    descending: bool,
    /// The key of the selected row.
    selected: Option<(String, u32, u32)>,
    /// Rows above the screen.
    top: usize,
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Screen {
    history: History,
    places: [Place; 3],
    at: usize,
    filter: String,
    mode: Mode,
    note: Option<String>,
    /// Rows that fitted on the screen at last.
    page: usize,
}

impl Screen {
    pub(super) fn new(filter: String) -> Screen {
        Screen {
            history: History::default(),
            places: View::ALL.map(|view| Place {
                view,
                order: view.first_order(),
                descending: true,
                selected: None,
                top: 0,
            }),
            at: 0,
            filter,
            mode: Mode::Table,
            note: None,
            page: 1,
        }
    }

    /// Takes a new sample.
    pub(super) fn update(&mut self, sample: Sample) {
        self.note = sample.notes.first().cloned();
        self.history.add(sample);
    }

    /// Shows a message until the next sample.
    pub(super) fn note(&mut self, text: String) {
        self.note = Some(text);
    }

    /// Shows the story of the selected queue pair.
    pub(super) fn explain(&mut self, story: &str) {
        if let Mode::Story { lines, .. } = &mut self.mode {
            *lines = story.lines().map(str::to_owned).collect();
        }
    }

    pub(super) fn press(&mut self, key: Key) -> Action {
        if key == Key::Interrupt {
            return Action::Quit;
        }
        match &mut self.mode {
            Mode::Table => self.press_in_table(key),
            Mode::Filter => {
                self.type_filter(key);
                Action::None
            }
            Mode::Story { lines, top, .. } => {
                let end = lines.len().saturating_sub(1);
                match key {
                    Key::Char('q') => return Action::Quit,
                    Key::Escape | Key::Enter | Key::Char('e') => self.mode = Mode::Table,
                    Key::Up | Key::Char('k') => *top = top.saturating_sub(1),
                    Key::Down | Key::Char('j') => *top = (*top + 1).min(end),
                    Key::PageUp => *top = top.saturating_sub(self.page),
                    Key::PageDown | Key::Char(' ') => *top = (*top + self.page).min(end),
                    Key::Home => *top = 0,
                    Key::End => *top = end,
                    _ => {}
                }
                Action::None
            }
        }
    }

    fn press_in_table(&mut self, key: Key) -> Action {
        let page = self.page as isize;
        let columns = self.place().view.columns().len();
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Tab => self.at = (self.at + 1) % self.places.len(),
            Key::Char(digit @ '1'..='3') => self.at = digit as usize - '1' as usize,
            Key::Up | Key::Char('k') => self.select(-1),
            Key::Down | Key::Char('j') => self.select(1),
            Key::PageUp => self.select(-page),
            Key::PageDown | Key::Char(' ') => self.select(page),
            Key::Home => self.select(isize::MIN),
            Key::End => self.select(isize::MAX),
            Key::Char('<') => {
                let place = self.place_mut();
                place.order = place.order.checked_sub(1).unwrap_or(columns - 1);
            }
            Key::Char('>') => {
                let place = self.place_mut();
                place.order = (place.order + 1) % columns;
            }
            Key::Char('r') => {
                let place = self.place_mut();
                place.descending = !place.descending;
            }
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Escape => self.filter.clear(),
            Key::Char('e') | Key::Enter => return self.begin_story(),
            _ => {}
        }
        Action::None
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.mode = Mode::Table,
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(typed) => self.filter.push(typed),
            _ => {}
        }
    }

    fn begin_story(&mut self) -> Action {
        if self.place().view != View::QueuePairs {
            self.note("choose a queue pair to explain: key 1 shows them".into());
            return Action::None;
        }
        let rows = self.rows();
        let Some(row) = self.selected_of(&rows).and_then(|at| rows.get(at)) else {
            return Action::None;
        };
        let (link, pid, qpn) = row.key.clone();
        let program = &row.cells[2].text;
        self.mode = Mode::Story {
            title: format!("queue pair {qpn:#08x} of {program}/{pid} on {link}"),
            lines: Vec::new(),
            top: 0,
        };
        Action::Explain { pid, qpn }
    }

    fn place(&self) -> &Place {
        &self.places[self.at]
    }

    fn place_mut(&mut self) -> &mut Place {
        &mut self.places[self.at]
    }

    /// Returns the rows that the filter admits, in order.
    fn rows(&self) -> Vec<Row> {
        let place = self.place();
        let mut rows = self.history.rows(place.view);
        let filter = self.filter.to_lowercase();
        let admits = |row: &Row| {
            let mut cells = row.cells.iter();
            filter.is_empty() || cells.any(|cell| cell.text.to_lowercase().contains(&filter))
        };
        rows.retain(admits);
        rows.sort_by(|a, b| {
            let order = a.cells[place.order].order(&b.cells[place.order]);
            let order = match place.descending {
                true => order.reverse(),
                false => order,
            };
            order.then_with(|| a.key.cmp(&b.key))
        });
        rows
    }

    /// Returns the index of the selected row: the first if the selected one is gone.
    fn selected_of(&self, rows: &[Row]) -> Option<usize> {
        let selected = self.place().selected.as_ref();
        let at = rows.iter().position(|row| Some(&row.key) == selected);
        at.or((!rows.is_empty()).then_some(0))
    }

    /// Moves the selection by some rows.
    fn select(&mut self, by: isize) {
        let rows = self.rows();
        let Some(at) = self.selected_of(&rows) else {
            return;
        };
        let to = at.saturating_add_signed(by).min(rows.len() - 1);
        self.place_mut().selected = Some(rows[to].key.clone());
    }

    /// Returns the lines of a screen of this size.
    pub(super) fn lines(&mut self, width: usize, height: usize) -> Vec<Line> {
        self.page = height.saturating_sub(HEADER + 1).max(1);
        let mut lines = vec![self.title(), self.summary()];
        let keys = match &self.mode {
            Mode::Story {
                title,
                lines: story,
                top,
            } => {
                lines.push(line(format!(" {title}"), Style::Bold));
                let wrapped = story.iter().skip(*top).flat_map(|text| wrap(text, width));
                lines.extend(wrapped.take(self.page).map(|text| line(text, Style::Plain)));
                KEYS_OF_STORY.to_owned()
            }
            Mode::Filter => {
                self.table(width, &mut lines);
                format!(" filter: {}_", self.filter)
            }
            Mode::Table => {
                self.table(width, &mut lines);
                KEYS.to_owned()
            }
        };
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), line(String::new(), Style::Plain));
        lines.push(line(keys, Style::Dim));
        for line in &mut lines {
            line.text = fitted(&line.text, width, false);
        }
        lines
    }

    fn title(&self) -> Line {
        let views = self.places.iter().enumerate().map(|(at, place)| {
            let name = place.view.title();
            match at == self.at {
                true => format!("[{} {name}]", at + 1),
                false => format!(" {} {name} ", at + 1),
            }
        });
        let mut text = format!("ferroce top  {}", views.collect::<String>());
        if !self.filter.is_empty() {
            text += &format!("  filter: {}", self.filter);
        }
        line(text, Style::Bold)
    }

    /// Returns the counts, or the message that is to be shown.
    fn summary(&self) -> Line {
        if let Some(note) = &self.note {
            return line(format!(" {note}"), Style::Red);
        }
        let Some(last) = self.history.last() else {
            return line(String::new(), Style::Plain);
        };
        let failed = last.qps.iter().filter(|of| of.qp.state == "ERR").count();
        let count = |count: usize, name: &str| match count {
            1 => format!("1 {name}"),
            _ => format!("{count} {name}s"),
        };
        let mut text = format!(
            " {}, {}, {}",
            count(last.links.len(), "link"),
            count(last.programs.len(), "program"),
            count(last.qps.len(), "queue pair")
        );
        if failed > 0 {
            text += &format!(", {failed} in error");
        }
        let faulty = last
            .links
            .iter()
            .filter(|link| !link.info.faults.is_empty());
        for link in faulty {
            text += &format!("; faults on {}: {}", link.info.name, link.info.faults);
        }
        line(text, Style::Plain)
    }

    /// Adds the column titles and the rows.
    fn table(&mut self, width: usize, lines: &mut Vec<Line>) {
        let rows = self.rows();
        let selected = self.selected_of(&rows);
        let page = self.page;
        let place = self.place_mut();
        if let Some(at) = selected {
            let lowest = (at + 1).saturating_sub(page);
            place.top = place.top.clamp(lowest, at);
        }
        let (top, order, descending) = (place.top, place.order, place.descending);
        let shown = shown_columns(place.view.columns(), width);
        let title = shown.iter().map(|&(at, column)| {
            let mark = match (at == order, descending) {
                (true, true) => "v",
                (true, false) => "^",
                _ => "",
            };
            fitted(
                &format!("{mark}{}", column.title),
                column.width,
                column.is_number,
            )
        });
        lines.push(line(joined(title), Style::Bold));
        if rows.is_empty() {
            let name = self.place().view.title();
            let text = match self.filter.is_empty() {
                true => format!(" no {name}"),
                false => format!(
                    " no {name} with `{}`; escape removes the filter",
                    self.filter
                ),
            };
            lines.push(line(text, Style::Plain));
        }
        for (at, row) in rows.iter().enumerate().skip(top).take(page) {
            let cells = shown
                .iter()
                .map(|&(at, column)| fitted(&row.cells[at].text, column.width, column.is_number));
            let style = match (Some(at) == selected, row.is_bad) {
                (true, _) => Style::Reverse,
                (_, true) => Style::Red,
                _ => Style::Plain,
            };
            lines.push(line(joined(cells), style));
        }
    }
}

fn line(text: String, style: Style) -> Line {
    Line { text, style }
}

fn joined(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(" ")
}

/// Returns the columns that fit, with their indices. Room that is left widens the first text
/// column, after extra columns.
fn shown_columns(columns: &[Column], width: usize) -> Vec<(usize, Column)> {
    let basic = columns.iter().filter(|column| !column.is_extra);
    let mut used: usize = basic.map(|column| column.width + 1).sum();
    let mut shown = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        if column.is_extra {
            if used + column.width + 1 > width + 1 {
                continue;
            }
            used += column.width + 1;
        }
        shown.push((at, *column));
    }
    let program = shown
        .iter_mut()
        .find(|(_, column)| column.title == "PROGRAM");
    if let Some((_, program)) = program {
        // The kernel's names of processes have at most 15 characters.
        program.width += (width + 1).saturating_sub(used).min(6);
    }
    shown
}

/// Returns text with exactly this width. Text that is too long ends with `~`.
fn fitted(text: &str, width: usize, right: bool) -> String {
    let printable = text.chars().map(|c| if c.is_control() { '?' } else { c });
    let text: String = printable.collect();
    if text.chars().count() > width {
        let kept: String = text.chars().take(width.saturating_sub(1)).collect();
        return format!("{kept}~");
    }
    match right {
        true => format!("{text:>width$}"),
        false => format!("{text:<width$}"),
    }
}

/// Breaks a line at spaces; the parts after the first are indented.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let start = text.len() - text.trim_start().len();
    lines[0].push_str(&text[..start]);
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("never empty");
        let length = last.chars().count();
        if length > start && length + 1 + word.chars().count() > width {
            lines.push(format!("{:indent$}{word}", "", indent = start + 2));
            continue;
        }
        if !last.trim().is_empty() {
            last.push(' ');
        }
        last.push_str(word);
    }
    lines
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
