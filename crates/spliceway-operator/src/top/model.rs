//! What `spliceway top` knows and shows: the last answer of the program, and the operator's
//! choices.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;
use tokio::time::Instant;

use crate::api::{Backend, ServiceStatus, SessionView, Status};

/// The longest filter, which fits into the last line of a screen of 80 columns.
const FILTER_MAX: usize = 40;

/// The state of the screen.
#[derive(Default)]
pub(super) struct Model {
    pub(super) status: Status,
    /// The sessions that the filter selects, in the order of the screen.
    pub(super) rows: Vec<Row>,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) view: View,
    /// The last thing to say: the result of a command, or why there is no answer.
    pub(super) notice: Option<String>,
    /// The time of the last answer.
    answered: Option<Instant>,
    /// Whether the program has not answered since.
    is_silent: bool,
    /// Whether there are more sessions than were read.
    pub(super) has_more: bool,
    pub(super) table: TableState,
    /// The number of the session that is selected.
    selected: Option<u64>,
    all: Vec<Row>,
}

/// A session, and its bytes per second since the last answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Row {
    pub(super) session: SessionView,
    pub(super) up: f64,
    pub(super) down: f64,
}

/// The column that decides the order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Rate,
    Up,
    Down,
    Bytes,
    Age,
    Client,
}

/// What the table has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Sessions,
    Services,
    Backends,
}

/// What keys mean.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Browse,
    /// Keys change the filter.
    Filter,
    /// The next key decides whether this session is ended.
    Confirm(u64),
    /// The next key closes the help.
    Help,
}

/// What the operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Quit,
    Close(u64),
}

/// An answer of the program.
pub(super) struct Update {
    pub(super) status: Status,
    pub(super) sessions: Vec<SessionView>,
    pub(super) has_more: bool,
    /// The time since the answer before.
    pub(super) after: Option<Duration>,
}

impl View {
    fn next(self) -> Self {
        match self {
            Self::Sessions => Self::Services,
            Self::Services => Self::Backends,
            Self::Backends => Self::Sessions,
        }
    }
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Up => "up",
            Self::Down => "down",
            Self::Bytes => "bytes",
            Self::Age => "age",
            Self::Client => "client",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Rate => Self::Up,
            Self::Up => Self::Down,
            Self::Down => Self::Bytes,
            Self::Bytes => Self::Age,
            Self::Age => Self::Client,
            Self::Client => Self::Rate,
        }
    }

    /// Sorts rows: the largest first, and addresses from the first.
    fn sort(self, rows: &mut [Row]) {
        // A rate is finite and not negative. Whole bytes per second are exact enough.
        let by = |rows: &mut [Row], key: fn(&Row) -> u64| rows.sort_by_key(|row| (Reverse(key(row)), row.session.id));
        match self {
            Self::Rate => by(rows, |row| (row.up + row.down) as u64),
            Self::Up => by(rows, |row| row.up as u64),
            Self::Down => by(rows, |row| row.down as u64),
            Self::Bytes => by(rows, |row| row.session.bytes_up.saturating_add(row.session.bytes_down)),
            Self::Age => by(rows, |row| row.session.duration_ms),
            Self::Client => {
                rows.sort_by(|a, b| (&a.session.client, a.session.id).cmp(&(&b.session.client, b.session.id)));
            }
        }
    }
}

impl Model {
    pub(super) fn update(&mut self, update: Update) {
        let before: HashMap<u64, SessionView> = self.all.drain(..).map(|row| (row.session.id, row.session)).collect();
        let seconds = update
            .after
            .map(|after| after.as_secs_f64())
            .filter(|seconds| *seconds > 0.0);
        let row = |session: SessionView| {
            let mut row = Row {
                session,
                up: 0.0,
                down: 0.0,
            };
            if let Some(seconds) = seconds {
                let before = before.get(&row.session.id);
                let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
                row.up = rate(row.session.bytes_up, before.map_or(0, |before| before.bytes_up));
                row.down = rate(row.session.bytes_down, before.map_or(0, |before| before.bytes_down));
            }
            row
        };
        self.all = update.sessions.into_iter().map(row).collect();
        self.status = update.status;
        self.has_more = update.has_more;
        self.notice = None;
        (self.answered, self.is_silent) = (Some(Instant::now()), false);
        self.arrange();
    }

    pub(super) fn say(&mut self, notice: String) {
        self.notice = Some(notice);
    }

    /// Records that the program did not answer.
    pub(super) fn miss(&mut self, why: String) {
        self.is_silent = true;
        self.say(why);
    }

    /// Returns for how long the program has not answered. `None` if it answers.
    pub(super) fn silence(&self) -> Option<Duration> {
        self.is_silent.then(|| self.answered.map(|at| at.elapsed()))?
    }

    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Option<Wish> {
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let code = match key.code {
            KeyCode::Char('c') if with_control => return Some(Wish::Quit),
            // Some terminals send this for the key above Enter.
            KeyCode::Char('h') if with_control => KeyCode::Backspace,
            // Other combinations are commands of other programs, and no text.
            KeyCode::Char(_) if key.modifiers.difference(KeyModifiers::SHIFT) != KeyModifiers::NONE => KeyCode::Null,
            code => code,
        };
        match std::mem::take(&mut self.mode) {
            Mode::Help => return None,
            Mode::Browse => return self.browse(code),
            Mode::Confirm(id) => return (code == KeyCode::Char('y')).then_some(Wish::Close(id)),
            Mode::Filter => match code {
                KeyCode::Enter => return None,
                KeyCode::Esc => {
                    self.filter.clear();
                    self.arrange();
                    return None;
                }
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(char) if self.filter.chars().count() < FILTER_MAX => self.filter.push(char),
                _ => {}
            },
        }
        self.mode = Mode::Filter;
        self.arrange();
        None
    }

    fn browse(&mut self, key: KeyCode) -> Option<Wish> {
        const PAGE: usize = 10;
        let selected = self.table.selected();
        let at = selected.unwrap_or(0);
        let mut go_to = |row: usize| {
            let row = row.min(self.rows.len().saturating_sub(1));
            self.selected = self.rows.get(row).map(|row| row.session.id);
            self.table.select(self.selected.map(|_| row));
        };
        match key {
            KeyCode::Char('q') => return Some(Wish::Quit),
            KeyCode::Esc if !self.filter.is_empty() => {
                self.filter.clear();
                self.arrange();
            }
            KeyCode::Esc if self.view != View::Sessions => self.view = View::Sessions,
            KeyCode::Esc => return Some(Wish::Quit),
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Tab => self.view = self.view.next(),
            KeyCode::Char('1') => self.view = View::Sessions,
            KeyCode::Char('2') => self.view = View::Services,
            KeyCode::Char('3') => self.view = View::Backends,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            // Only the sessions can be selected, sorted and ended.
            _ if self.view != View::Sessions => {}
            KeyCode::Down => go_to(selected.map_or(0, |at| at + 1)),
            KeyCode::Up => go_to(at.saturating_sub(1)),
            KeyCode::PageDown => go_to(at + PAGE),
            KeyCode::PageUp => go_to(at.saturating_sub(PAGE)),
            KeyCode::Home => go_to(0),
            KeyCode::End => go_to(usize::MAX),
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.arrange();
            }
            KeyCode::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.arrange();
            }
            KeyCode::Char('k') | KeyCode::Delete => self.mode = self.selected.map_or(Mode::Browse, Mode::Confirm),
            _ => {}
        }
        None
    }

    /// Filters and sorts the sessions, and keeps the selected one.
    fn arrange(&mut self) {
        let is_selected = |row: &&Row| contains(&row.session, &self.filter);
        self.rows = self.all.iter().filter(is_selected).cloned().collect();
        self.sort.sort(&mut self.rows);
        if self.is_reversed {
            self.rows.reverse();
        }
        let place = |id| self.rows.iter().position(|row| row.session.id == id);
        // If the selected session has ended, the session that takes its row is selected.
        let row = self.selected.and_then(place).or_else(|| {
            let last = self.rows.len().checked_sub(1)?;
            self.table.selected().map(|row| row.min(last))
        });
        self.table.select(row);
        self.selected = row.map(|row| self.rows[row].session.id);
    }

    /// Returns the services that the filter selects. Those that need the operator come first.
    pub(super) fn services(&self) -> Vec<&ServiceStatus> {
        let services = self.status.services.iter();
        let mut services: Vec<_> = services.filter(|one| one.name.contains(&self.filter)).collect();
        services.sort_by_key(|service| service.health);
        services
    }

    /// Returns the backends whose name or service the filter selects. Those without clients come
    /// first.
    pub(super) fn backends(&self) -> Vec<(&ServiceStatus, &Backend)> {
        let services = self.status.services.iter();
        let backends = services.flat_map(|service| service.backends.iter().map(move |backend| (service, backend)));
        let is_selected = |(service, backend): &(&ServiceStatus, &Backend)| {
            [&service.name, &backend.name, &backend.state]
                .iter()
                .any(|text| text.contains(&self.filter))
        };
        let mut backends: Vec<_> = backends.filter(is_selected).collect();
        backends.sort_by_key(|(_, backend)| backend.trouble.is_none());
        backends
    }

    /// Returns the session with this number, if it is on the screen.
    pub(super) fn session(&self, id: u64) -> Option<&SessionView> {
        self.rows
            .iter()
            .map(|row| &row.session)
            .find(|session| session.id == id)
    }
}

fn contains(session: &SessionView, filter: &str) -> bool {
    let optional = [&session.user, &session.target, &session.dialled];
    let texts = [&session.service, &session.client, &session.state];
    let mut texts = texts.into_iter().chain(optional.into_iter().flatten());
    texts.any(|text| text.contains(filter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(model: &mut Model, keys: &str) -> Option<Wish> {
        let code = |key| match key {
            '\n' => KeyCode::Enter,
            '↓' => KeyCode::Down,
            '←' => KeyCode::Backspace,
            key => KeyCode::Char(key),
        };
        keys.chars()
            .filter_map(|key| model.key(KeyEvent::from(code(key))))
            .last()
    }

    fn ids(model: &Model) -> Vec<u64> {
        model.rows.iter().map(|row| row.session.id).collect()
    }

    /// Sends an answer with the given bytes of sessions 1, 2, …
    fn update(model: &mut Model, bytes_down: &[u64], after: Option<u64>) {
        let session = |(id, bytes_down): (u64, &u64)| SessionView {
            id,
            client: format!("192.0.2.{id}:5000"),
            bytes_down: *bytes_down,
            duration_ms: id * 1000,
            ..SessionView::default()
        };
        model.update(Update {
            status: Status::default(),
            sessions: (1..).zip(bytes_down).map(session).collect(),
            has_more: false,
            after: after.map(Duration::from_secs),
        });
    }

    #[test]
    fn rates_are_differences_and_decide_the_order() {
        let mut model = Model::default();
        update(&mut model, &[100, 200, 300], None);
        assert_eq!(ids(&model), [1, 2, 3], "no rates yet");
        update(&mut model, &[100, 400, 900], Some(2));
        assert_eq!(ids(&model), [3, 2, 1]);
        assert_eq!(model.rows[0].down, 300.0);
        press(&mut model, "r");
        assert_eq!(ids(&model), [1, 2, 3]);
        press(&mut model, "rssss");
        assert_eq!((model.sort, &ids(&model)[..]), (Sort::Age, &[3, 2, 1][..]));
    }

    #[test]
    fn escape_undoes_one_thing_after_another_and_then_quits() {
        let mut model = Model::default();
        update(&mut model, &[1, 1, 1], None);
        let escape = |model: &mut Model| model.key(KeyEvent::from(KeyCode::Esc));
        press(&mut model, "/.2.3\n");
        model.key(KeyEvent::from(KeyCode::Tab));
        press(&mut model, "?");
        assert_eq!((&model.mode, model.view), (&Mode::Help, View::Services));
        assert_eq!(press(&mut model, "q"), None, "closes the help");
        press(&mut model, "?");
        assert_eq!((escape(&mut model), &model.mode), (None, &Mode::Browse));
        assert_eq!((model.filter.as_str(), ids(&model)), (".2.3", vec![3]));
        assert_eq!((escape(&mut model), ids(&model).len()), (None, 3));
        assert_eq!((escape(&mut model), model.view), (None, View::Sessions));
        assert_eq!(escape(&mut model), Some(Wish::Quit));
    }

    #[test]
    fn only_the_view_of_sessions_ends_sessions() {
        let mut model = Model::default();
        update(&mut model, &[1, 1], None);
        assert_eq!(press(&mut model, "↓2ky"), None);
        assert_eq!(press(&mut model, "3ky"), None);
        assert_eq!(press(&mut model, "1ky"), Some(Wish::Close(1)));
    }

    #[test]
    fn a_filter_selects_rows_and_the_selection_stays_on_its_session() {
        let mut model = Model::default();
        update(&mut model, &[1, 1, 1], None);
        press(&mut model, "↓↓↓");
        assert_eq!(model.table.selected(), Some(2));
        press(&mut model, "/.2.3\n");
        assert_eq!((ids(&model), model.table.selected()), (vec![3], Some(0)));
        press(&mut model, "/←←←←\n");
        assert_eq!((ids(&model).len(), model.table.selected()), (3, Some(2)));
    }

    #[test]
    fn combinations_with_control_are_no_text_and_no_command() {
        let mut model = Model::default();
        update(&mut model, &[1], None);
        press(&mut model, "↓k");
        let control = |key| KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL);
        assert_eq!(model.key(control('y')), None);
        assert_eq!(model.key(control('q')), None);
        press(&mut model, "/ab");
        assert_eq!(model.key(control('u')), None);
        assert_eq!(model.key(KeyEvent::new(KeyCode::Char('x'), KeyModifiers::ALT)), None);
        assert_eq!(model.filter, "ab");
        model.key(control('h'));
        press(&mut model, "ü".repeat(50).as_str());
        assert_eq!(model.filter.chars().count(), FILTER_MAX);
        assert_eq!(model.key(control('c')), Some(Wish::Quit));
    }

    #[test]
    fn a_session_is_closed_only_after_a_yes() {
        let mut model = Model::default();
        update(&mut model, &[1, 1], None);
        // Before a session is selected, the key does nothing.
        assert_eq!(press(&mut model, "ky↓↓kn"), None);
        assert_eq!(press(&mut model, "y"), None);
        assert_eq!(press(&mut model, "ky"), Some(Wish::Close(2)));
        assert_eq!(press(&mut model, "/q\n"), None, "part of a filter");
        assert_eq!(press(&mut model, "q"), Some(Wish::Quit));
    }
}
