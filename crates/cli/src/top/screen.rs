//! The screen: selection, order, filter, and the widgets that show them.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{self, Paragraph, Table, TableState, Wrap};

use super::sample::Sample;
use super::table::{Column, Row};
use super::tables::{History, View};

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

    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        // Escape and a key at once look like the key with Alt.
        if key.modifiers.contains(KeyModifiers::ALT) {
            self.press(KeyCode::Esc.into());
            let modifiers = key.modifiers - KeyModifiers::ALT;
            return self.press(KeyEvent::new(key.code, modifiers));
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                _ => Action::None,
            };
        }
        let key = key.code;
        match &mut self.mode {
            Mode::Table => self.press_in_table(key),
            Mode::Filter => {
                self.type_filter(key);
                Action::None
            }
            Mode::Story { lines, top, .. } => {
                let end = lines.len().saturating_sub(1);
                match key {
                    KeyCode::Char('q') => return Action::Quit,
                    KeyCode::Esc | KeyCode::Enter | KeyCode::Char('e') => self.mode = Mode::Table,
                    KeyCode::Up | KeyCode::Char('k') => *top = top.saturating_sub(1),
                    KeyCode::Down | KeyCode::Char('j') => *top = (*top + 1).min(end),
                    KeyCode::PageUp => *top = top.saturating_sub(self.page),
                    KeyCode::PageDown | KeyCode::Char(' ') => *top = (*top + self.page).min(end),
                    KeyCode::Home => *top = 0,
                    KeyCode::End => *top = end,
                    _ => {}
                }
                Action::None
            }
        }
    }

    fn press_in_table(&mut self, key: KeyCode) -> Action {
        let page = self.page as isize;
        let columns = self.place().view.columns().len();
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Tab => self.at = (self.at + 1) % self.places.len(),
            KeyCode::Char(digit @ '1'..='3') => self.at = digit as usize - '1' as usize,
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-page),
            KeyCode::PageDown | KeyCode::Char(' ') => self.select(page),
            KeyCode::Home => self.select(isize::MIN),
            KeyCode::End => self.select(isize::MAX),
            KeyCode::Char('<') => {
                let place = self.place_mut();
                place.order = place.order.checked_sub(1).unwrap_or(columns - 1);
            }
            KeyCode::Char('>') => {
                let place = self.place_mut();
                place.order = (place.order + 1) % columns;
            }
            KeyCode::Char('r') => {
                let place = self.place_mut();
                place.descending = !place.descending;
            }
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('e') | KeyCode::Enter => return self.begin_story(),
            _ => {}
        }
        Action::None
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(typed) => self.filter.push(typed),
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

    /// Draws the screen.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let parts = [1, 1, 0, 1].map(|height| match height {
            0 => Constraint::Fill(1),
            height => Constraint::Length(height),
        });
        let [title, summary, body, keys] = Layout::vertical(parts).areas(frame.area());
        // One line of the body has the titles of the columns, or the name of the queue pair.
        self.page = usize::from(body.height.saturating_sub(1)).max(1);
        frame.render_widget(self.title(), title);
        frame.render_widget(self.summary(), summary);
        let help = match &self.mode {
            Mode::Story { title, lines, top } => {
                let heads = [Constraint::Length(1), Constraint::Fill(1)];
                let [head, story] = Layout::vertical(heads).areas(body);
                frame.render_widget(Line::from(format!(" {title}")).bold(), head);
                let text =
                    Text::from_iter(lines[(*top).min(lines.len())..].iter().map(String::as_str));
                frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), story);
                KEYS_OF_STORY.to_owned()
            }
            Mode::Filter => {
                self.table(frame, body);
                format!(" filter: {}_", self.filter)
            }
            Mode::Table => {
                self.table(frame, body);
                KEYS.to_owned()
            }
        };
        frame.render_widget(Line::from(help).dim(), keys);
    }

    fn title(&self) -> Line<'static> {
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
        Line::from(text).bold()
    }

    /// Returns the counts, or the message that is to be shown.
    fn summary(&self) -> Line<'static> {
        if let Some(note) = &self.note {
            return Line::from(format!(" {note}")).red();
        }
        let Some(last) = self.history.last() else {
            return Line::default();
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
        Line::from(text)
    }

    /// Draws the titles of the columns and the rows.
    fn table(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.rows();
        let selected = self.selected_of(&rows);
        let place = self.place();
        let shown = shown_columns(place.view.columns(), area.width.into());
        let titles = shown.iter().map(|&(at, column)| {
            let mark = match (at == place.order, place.descending) {
                (true, true) => "v",
                (true, false) => "^",
                _ => "",
            };
            cell(format!("{mark}{}", column.title), column)
        });
        let lines = rows.iter().map(|row| {
            let cells = shown
                .iter()
                .map(|&(at, column)| cell(row.cells[at].text.clone(), column));
            let line = widgets::Row::new(cells);
            if row.is_bad { line.red() } else { line }
        });
        let widths = shown
            .iter()
            .map(|(_, column)| Constraint::Length(column.width as u16));
        let table = Table::new(lines, widths)
            .header(widgets::Row::new(titles).bold())
            .row_highlight_style(Style::new().reversed());
        let mut state = TableState::new()
            .with_offset(place.top)
            .with_selected(selected);
        frame.render_stateful_widget(table, area, &mut state);
        self.place_mut().top = state.offset();
        if rows.is_empty() {
            let name = self.place().view.title();
            let text = match self.filter.is_empty() {
                true => format!(" no {name}"),
                false => format!(
                    " no {name} with `{}`; escape removes the filter",
                    self.filter
                ),
            };
            let below = area.offset(ratatui::layout::Offset { x: 0, y: 1 });
            frame.render_widget(Line::from(text), below.intersection(area));
        }
    }
}

/// Returns a cell; numbers are aligned to the right.
fn cell(text: String, column: Column) -> widgets::Cell<'static> {
    let line = Line::from(fitted(text, column.width));
    widgets::Cell::from(match column.is_number {
        true => line.right_aligned(),
        false => line,
    })
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

/// Marks text that is too long with `~` at its end.
fn fitted(mut text: String, width: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(width) {
        text.truncate(end);
        text.pop();
        text.push('~');
    }
    text
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
