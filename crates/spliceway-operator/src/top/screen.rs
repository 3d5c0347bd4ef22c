//! Draws the screen of `spliceway top`.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::model::{Mode, Model, Row};
use crate::api::SessionView;
use crate::status::{fallbacks, share, uptime};
use crate::text::{bytes, percent, time};
use crate::tls::{self, Urgency};

/// A screen of this width also shows the user and the idle time.
const WIDE: u16 = 110;

const DIM: Style = Style::new().fg(Color::DarkGray);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const HEAD: Style = Style::new().add_modifier(Modifier::REVERSED);

/// The columns that are not on every screen.
#[derive(Clone, Copy)]
struct Shown {
    /// The share of a quota that the session's user has used, if there is such a user.
    quota: bool,
    /// The version of TLS, if a session has one.
    tls: bool,
    /// The idle time and the user.
    more: bool,
}

pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let summary = summary(model);
    let height = Constraint::Length(summary.len().try_into().unwrap_or(u16::MAX));
    let [head, table, foot] = Layout::vertical([height, Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(summary), head);
    sessions(frame, table, model);
    frame.render_widget(Paragraph::new(keys(model)), foot);
}

fn summary(model: &Model) -> Vec<Line<'static>> {
    let status = &model.status;
    let (ready, color) = if status.ready {
        ("ready", Color::Green)
    } else {
        ("not ready", Color::Red)
    };
    let state = Span::styled(format!("{}, {ready}", status.state), Style::new().fg(color));
    let uptime = uptime(status);
    let rates = &status.rates;
    let mut lines = vec![
        Line::from(vec![
            Span::styled(format!("spliceway {}", status.version), BOLD),
            Span::raw("  "),
            state,
            Span::raw(format!("  up {uptime}  pid {}", status.pid.unwrap_or_default())),
        ]),
        Line::from(format!(
            "sessions {} of {}, {:.1} new/s   up {}/s   down {}/s   spliced {}",
            status.sessions.active,
            status.limits.sessions,
            rates.sessions,
            bytes(rates.bytes_up),
            bytes(rates.bytes_down),
            share(rates)
        )),
        Line::from(format!(
            "pipes {} lent, {} idle, {}/{} pages   fallbacks {}",
            status.pipes.lent,
            status.pipes.idle,
            status.pipes.pages,
            status.limits.pipe_pages,
            fallbacks(status)
        )),
    ];
    lines.extend(tls::summary(&status.services).map(|(text, urgency)| {
        let style = match urgency {
            Urgency::None => Style::new(),
            Urgency::Soon => Style::new().fg(Color::Yellow),
            Urgency::Now => Style::new().fg(Color::Red),
        };
        Line::styled(text, style)
    }));
    lines.push(Line::default());
    lines
}

fn sessions(frame: &mut Frame<'_>, area: Rect, model: &mut Model) {
    let shown = Shown {
        quota: model.rows.iter().any(|row| row.session.quota_used.is_some()),
        tls: model.rows.iter().any(|row| row.session.tls.is_some()),
        more: area.width >= WIDE,
    };
    let mut columns = vec![
        ("ID", Constraint::Length(6), false),
        ("CLIENT", Constraint::Fill(1), false),
        ("TARGET", Constraint::Fill(1), false),
        ("UP/s", Constraint::Length(7), true),
        ("DOWN/s", Constraint::Length(7), true),
        ("SPL", Constraint::Length(5), true),
        ("AGE", Constraint::Length(6), true),
    ];
    if shown.quota {
        columns.push(("QUOTA", Constraint::Length(5), true));
    }
    if shown.tls {
        columns.push(("TLS", Constraint::Length(3), false));
    }
    if shown.more {
        columns.extend([
            ("IDLE", Constraint::Length(6), true),
            ("USER", Constraint::Length(16), false),
        ]);
    }
    let head = columns
        .iter()
        .map(|(name, _, is_number)| cell((*name).to_owned(), *is_number));
    let head = TableRow::new(head).style(HEAD);
    let widths = columns.iter().map(|(_, width, _)| *width);
    let rows = model.rows.iter().map(|row| TableRow::new(cells(row, shown)));
    let table = Table::new(rows, widths)
        .header(head)
        .column_spacing(1)
        .row_highlight_style(HEAD);
    frame.render_stateful_widget(table, area, &mut model.table);
    if model.rows.is_empty() && area.height > 2 {
        let text = if model.filter.is_empty() {
            "no session is open"
        } else {
            "no session matches the filter"
        };
        let below = Rect {
            y: area.y + 2,
            height: 1,
            ..area
        };
        frame.render_widget(Paragraph::new(Span::styled(text, DIM)), below);
    }
}

fn cells(row: &Row, shown: Shown) -> Vec<Cell<'static>> {
    let session = &row.session;
    let moved = session.bytes_up.saturating_add(session.bytes_down);
    let spliced = session.spliced_up.saturating_add(session.spliced_down);
    let millis = |millis: u64| time(Duration::from_millis(millis));
    let mut cells = vec![
        cell(session.id.to_string(), false),
        cell(session.client.clone(), false),
        cell(target(session), false),
        cell(bytes(row.up), true),
        cell(bytes(row.down), true),
        cell(percent(spliced as f64, moved as f64), true),
        cell(millis(session.duration_ms), true),
    ];
    if shown.quota {
        let used = session.quota_used.map(|used| percent(used, 1.0));
        cells.push(cell(used.unwrap_or_else(|| "-".to_owned()), true));
    }
    if shown.tls {
        cells.push(cell(session.tls.clone().unwrap_or_else(|| "-".to_owned()), false));
    }
    if shown.more {
        cells.push(cell(session.idle_ms.map_or_else(|| "-".to_owned(), millis), true));
        cells.push(cell(session.user.clone().unwrap_or_default(), false));
    }
    cells
}

/// Returns the target, and the state if bytes do not flow.
fn target(session: &SessionView) -> String {
    match (&session.target, &*session.state) {
        (Some(target), "relay") => target.clone(),
        (Some(target), state) => format!("({state}) {target}"),
        (None, state) => format!("({state})"),
    }
}

fn cell(text: String, is_number: bool) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if is_number { line.right_aligned() } else { line })
}

/// The last line: a question, a notice, or what the keys do.
fn keys(model: &Model) -> Line<'static> {
    let alert = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
    match &model.mode {
        Mode::Confirm(id) => {
            let session = model.session(*id);
            let client = session
                .map(|session| format!(" of {}", session.client))
                .unwrap_or_default();
            return Line::styled(format!("End session {id}{client}? y = yes, any other key = no"), alert);
        }
        Mode::Filter => return Line::styled(format!("Filter: {}_   Enter = keep, Esc = clear", model.filter), alert),
        Mode::Browse => {}
    }
    if let Some(notice) = &model.notice {
        return Line::styled(notice.clone(), alert);
    }
    let mut text = format!(
        "q quit   ↑↓ select   s sort: {}   r reverse   k end session   / filter",
        model.sort.name()
    );
    if !model.filter.is_empty() {
        text.push_str(&format!(": {}", model.filter));
    }
    if model.has_more {
        text.push_str(&format!("   first {}", model.rows.len()));
    }
    Line::styled(text, DIM)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::*;
    use crate::api::{Fallback, Limits, Pipes, Rates, ServiceStatus, SessionCounts, Status, TlsStatus};
    use crate::top::model::Update;

    /// Two answers, one second after another. The last two sessions do not relay yet.
    fn model() -> Model {
        const SESSIONS: u64 = 18;
        let session = |id: u64, time: u64| {
            let (down, state) = match id {
                17 => (0, "dial"),
                18 => (0, "handshake"),
                id => (time * (40_000_000 >> id), "relay"),
            };
            SessionView {
                id: 1200 + id,
                service: "socks5".to_owned(),
                client: format!("192.0.2.{id}:{}", 50_000 + id),
                target: (state != "handshake").then(|| "198.51.100.7:443".to_owned()),
                state: state.to_owned(),
                duration_ms: (SESSIONS - id) * 61_000,
                bytes_up: if state == "relay" { 1000 + time * 300 } else { 0 },
                bytes_down: down,
                spliced_down: if id < 9 { down } else { 0 },
                ..SessionView::default()
            }
        };
        let update = |time: u64| Update {
            status: Status {
                version: "0.1.0".to_owned(),
                pid: Some(4242),
                state: "serving".to_owned(),
                ready: true,
                uptime_seconds: 93_784.0,
                sessions: SessionCounts {
                    active: SESSIONS,
                    total: 1218,
                    waits: 0,
                },
                rates: Rates {
                    over_seconds: 5.0,
                    bytes_up: 4_800.0,
                    bytes_down: 4e7,
                    spliced: 3.99e7,
                    sessions: 0.4,
                },
                pipes: Pipes {
                    lent: 1,
                    idle: 5,
                    pages: 321,
                    ..Pipes::default()
                },
                fallbacks: vec![Fallback {
                    reason: "pipe_budget".to_owned(),
                    count: 2,
                }],
                limits: Limits {
                    sessions: 500_000,
                    pipe_pages: 262_144,
                    ..Limits::default()
                },
                ..Status::default()
            },
            sessions: (1..=SESSIONS).map(|id| session(id, time)).collect(),
            has_more: false,
            after: (time > 0).then_some(Duration::from_secs(1)),
        };
        let mut model = Model::default();
        model.update(update(0));
        model.update(update(1));
        model
    }

    fn drawn(model: &mut Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |row| {
            (0..width)
                .map(|column| buffer[(column, row)].symbol())
                .collect::<String>()
        };
        (0..height).map(|row| line(row).trim_end().to_owned() + "\n").collect()
    }

    /// The screen of 80 × 24 in `docs/operations.md`. A line of the document has four blanks more.
    #[test]
    fn the_screen_of_80_columns_is_that_of_the_documentation() {
        let screen = drawn(&mut model(), 80, 24);
        let document = include_str!("../../../../docs/operations.md");
        let indented: String = screen
            .lines()
            .map(|line| format!("    {line}\n").replace("    \n", "\n"))
            .collect();
        assert!(
            document.contains(&indented),
            "docs/operations.md does not have\n{indented}"
        );
    }

    #[test]
    fn a_screen_with_users_shows_the_used_shares_of_their_quotas() {
        let mut model = model();
        for (row, used) in model.rows.iter_mut().zip([Some(0.876), Some(1.01), None]) {
            row.session.quota_used = used;
        }
        let screen = drawn(&mut model, 80, 24);
        let line = |start: &str| screen.lines().find(|line| line.starts_with(start)).unwrap();
        assert!(line("ID ").ends_with("   AGE QUOTA"), "{screen}");
        assert!(
            line("1201 ").starts_with("1201   192.0.2.1:50001     198.51.100.7:443 "),
            "{screen}"
        );
        for (start, end) in [("1201 ", " 88 %"), ("1202 ", "100 %"), ("1203 ", "15m15s     -")] {
            assert!(line(start).ends_with(end), "{screen}");
        }
    }

    #[test]
    fn a_screen_with_tls_shows_versions_and_when_certificates_end() {
        let mut model = model();
        model.rows[0].session.tls = Some("1.3".to_owned());
        model.status.services = vec![ServiceStatus {
            tls: Some(TlsStatus {
                certificates: 2,
                expires: "2027-01-12T00:00:00Z".to_owned(),
                expires_in_seconds: 47 * 86_400,
                ..TlsStatus::default()
            }),
            ..ServiceStatus::default()
        }];
        let screen = drawn(&mut model, 80, 24);
        let line = |start: &str| screen.lines().find(|line| line.starts_with(start)).unwrap();
        assert_eq!(
            line("tls "),
            "tls 2 certificates, the first ends in 47 days (2027-01-12)"
        );
        assert!(line("ID ").ends_with("   AGE TLS"), "{screen}");
        assert!(
            line("1201 ").ends_with(" 1.3") && line("1202 ").ends_with(" -"),
            "{screen}"
        );
    }

    #[test]
    fn questions_and_notices_replace_the_keys() {
        let mut model = model();
        let last = |model: &mut Model| drawn(model, 80, 24).lines().last().unwrap().to_owned();
        model.key(KeyEvent::from(KeyCode::Down));
        model.key(KeyEvent::from(KeyCode::Char('k')));
        assert_eq!(
            last(&mut model),
            "End session 1201 of 192.0.2.1:50001? y = yes, any other key = no"
        );
        model.key(KeyEvent::from(KeyCode::Char('n')));
        model.key(KeyEvent::from(KeyCode::Char('/')));
        model.key(KeyEvent::from(KeyCode::Char('x')));
        assert_eq!(last(&mut model), "Filter: x_   Enter = keep, Esc = clear");
        assert!(drawn(&mut model, 80, 24).contains("no session matches the filter"));
        model.key(KeyEvent::from(KeyCode::Esc));
        model.say("session 3 is closing".to_owned());
        assert_eq!(last(&mut model), "session 3 is closing");
    }

    #[test]
    fn every_size_of_screen_can_be_drawn() {
        for (width, height) in [(1, 1), (20, 5), (80, 2), (200, 60)] {
            drawn(&mut model(), width, height);
        }
        assert!(drawn(&mut model(), 120, 24).contains("IDLE"));
    }
}
