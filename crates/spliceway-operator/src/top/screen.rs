//! Draws the screen of `spliceway top`.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::model::{Mode, Model, Row, View};
use super::style::{DIM, HEAD, NARROW, cell, fit};
use super::{help, services};
use crate::api::SessionView;
use crate::status::{fallbacks, share, uptime};
use crate::text::{bytes, percent, time};
use crate::tls::{self, Urgency};

/// A screen of this width also shows the user and the idle time.
const WIDE: u16 = 110;
/// If a client and a target have less, columns are left out. Most IPv4 addresses with a port fit.
const ADDRESS: u16 = 18;
const USER: u16 = 16;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// The columns that are not on every screen.
#[derive(Clone, Copy)]
struct Shown {
    /// The number of the session.
    details: bool,
    /// The share of its bytes that were spliced.
    spliced: bool,
    /// The service, if there are several.
    service: bool,
    /// The share of a quota that the session's user has used, if there is such a user.
    quota: bool,
    /// The version of TLS, if a session has one.
    tls: bool,
    /// The idle time and the user.
    more: bool,
}

impl Shown {
    /// Returns the names of the columns, their widths, and whether they have numbers.
    fn columns(self) -> Vec<(&'static str, Constraint, bool)> {
        let mut columns = Vec::new();
        if self.details {
            columns.push(("ID", Constraint::Length(6), false));
        }
        if self.service {
            columns.push(("SERVICE", Constraint::Length(self.service_width()), false));
        }
        columns.extend([
            ("CLIENT", Constraint::Fill(1), false),
            ("TARGET", Constraint::Fill(1), false),
            ("UP/s", Constraint::Length(7), true),
            ("DOWN/s", Constraint::Length(7), true),
        ]);
        if self.spliced {
            columns.push(("SPL", Constraint::Length(5), true));
        }
        columns.push(("AGE", Constraint::Length(6), true));
        if self.quota {
            columns.push(("QUOTA", Constraint::Length(5), true));
        }
        if self.tls {
            columns.push(("TLS", Constraint::Length(3), false));
        }
        if self.more {
            columns.extend([
                ("IDLE", Constraint::Length(6), true),
                ("USER", Constraint::Length(USER), false),
            ]);
        }
        columns
    }

    fn service_width(self) -> u16 {
        if self.more { 16 } else { 10 }
    }

    /// Returns the width of a client and of a target on a screen of this width.
    fn address(self, screen: u16) -> u16 {
        let columns = self.columns();
        let fixed = columns.iter().map(|(_, width, _)| match width {
            Constraint::Length(width) => width + 1,
            _ => 1,
        });
        screen.saturating_sub(fixed.sum::<u16>() - 1) / 2
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let mut summary = summary(model, frame.area().width);
    // On a low screen, the help needs the lines.
    if model.mode == Mode::Help && usize::from(frame.area().height) < summary.len() + help::KEYS.len() + 1 {
        summary.clear();
    }
    let height = Constraint::Length(summary.len().try_into().unwrap_or(u16::MAX));
    let [head, table, foot] = Layout::vertical([height, Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(summary), head);
    match (&model.mode, model.view) {
        (Mode::Help, _) => help::draw(frame, table),
        (_, View::Sessions) => sessions(frame, table, model),
        (_, View::Services) => services::draw_services(frame, table, model),
        (_, View::Backends) => services::draw_backends(frame, table, model),
    }
    frame.render_widget(Paragraph::new(keys(model, foot.width)), foot);
}

fn summary(model: &Model, width: u16) -> Vec<Line<'static>> {
    let status = &model.status;
    let (ready, color) = if status.ready {
        ("ready", Color::Green)
    } else {
        ("not ready", Color::Red)
    };
    let state = match model.silence() {
        Some(silence) => Span::styled(format!("no answer for {}", time(silence)), Style::new().fg(Color::Red)),
        None => Span::styled(format!("{}, {ready}", status.state), Style::new().fg(color)),
    };
    let uptime = uptime(status);
    let rates = &status.rates;
    let mut lines = vec![
        Line::from(vec![
            Span::styled(format!("spliceway {}", status.version), BOLD),
            Span::raw("  "),
            state,
            Span::raw(format!("  up {uptime}  pid {}", status.pid.unwrap_or_default())),
        ]),
        Line::from(if width < NARROW {
            format!(
                "sessions {}/{}, {:.1}/s  up {}/s  down {}/s",
                status.sessions.active,
                status.limits.sessions,
                rates.sessions,
                bytes(rates.bytes_up),
                bytes(rates.bytes_down)
            )
        } else {
            format!(
                "sessions {} of {}, {:.1} new/s   up {}/s   down {}/s   spliced {}",
                status.sessions.active,
                status.limits.sessions,
                rates.sessions,
                bytes(rates.bytes_up),
                bytes(rates.bytes_down),
                share(rates)
            )
        }),
        Line::from(format!(
            "pipes {} lent, {} idle, {}/{} pages   fallbacks {}",
            status.pipes.lent,
            status.pipes.idle,
            status.pipes.pages,
            status.limits.pipe_pages,
            fallbacks(status)
        )),
    ];
    lines.extend(services::summary(model));
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
    let mut shown = Shown {
        details: area.width >= NARROW,
        spliced: area.width >= NARROW,
        service: area.width >= NARROW && model.status.services.len() > 1,
        quota: model.rows.iter().any(|row| row.session.quota_used.is_some()),
        tls: model.rows.iter().any(|row| row.session.tls.is_some()),
        more: area.width >= WIDE,
    };
    let leaves_too_little = |shown: Shown| shown.address(area.width) < ADDRESS;
    shown.spliced &= !leaves_too_little(shown);
    shown.quota &= !leaves_too_little(shown);
    shown.tls &= !leaves_too_little(shown);
    let address = shown.address(area.width);
    let table = Table::new(
        model.rows.iter().map(|row| TableRow::new(cells(row, shown, address))),
        shown.columns().iter().map(|(_, width, _)| *width),
    );
    let columns = shown.columns();
    let head = columns
        .iter()
        .map(|(name, _, is_number)| cell((*name).to_owned(), *is_number));
    let table = table
        .header(TableRow::new(head).style(HEAD))
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

fn cells(row: &Row, shown: Shown, address: u16) -> Vec<Cell<'static>> {
    let session = &row.session;
    let moved = session.bytes_up.saturating_add(session.bytes_down);
    let spliced = session.spliced_up.saturating_add(session.spliced_down);
    let millis = |millis: u64| time(Duration::from_millis(millis));
    let mut cells = Vec::new();
    if shown.details {
        cells.push(cell(session.id.to_string(), false));
    }
    if shown.service {
        cells.push(cell(fit(&session.service, shown.service_width()), false));
    }
    cells.extend([
        cell(fit(&session.client, address), false),
        cell(fit(&target(session), address), false),
        cell(bytes(row.up), true),
        cell(bytes(row.down), true),
    ]);
    if shown.spliced {
        cells.push(cell(percent(spliced as f64, moved as f64), true));
    }
    cells.push(cell(millis(session.duration_ms), true));
    if shown.quota {
        let used = session.quota_used.map(|used| percent(used, 1.0));
        cells.push(cell(used.unwrap_or_else(|| "-".to_owned()), true));
    }
    if shown.tls {
        cells.push(cell(session.tls.clone().unwrap_or_else(|| "-".to_owned()), false));
    }
    if shown.more {
        cells.push(cell(session.idle_ms.map_or_else(|| "-".to_owned(), millis), true));
        cells.push(cell(fit(session.user.as_deref().unwrap_or_default(), USER), false));
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

/// The last line: a question, a notice, or what the keys do.
fn keys(model: &Model, width: u16) -> Line<'static> {
    let alert = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
    match &model.mode {
        Mode::Confirm(id) => {
            let session = model.session(*id);
            let client = session
                .map(|session| format!("   {}", session.client))
                .unwrap_or_default();
            return Line::styled(format!("End session {id}? y = yes, any other key = no{client}"), alert);
        }
        Mode::Filter => return Line::styled(format!("Filter: {}_   Enter = keep, Esc = clear", model.filter), alert),
        Mode::Help => return Line::styled("any key = back", alert),
        Mode::Browse => {}
    }
    if let Some(notice) = &model.notice {
        return Line::styled(notice.clone(), alert);
    }
    let filter = if model.filter.is_empty() {
        "/ filter".to_owned()
    } else {
        format!("Esc clear  / filter: {}", model.filter)
    };
    let is_short = model.filter.is_empty() && !model.has_more;
    let mut text = match model.view {
        View::Sessions if width >= if is_short { NARROW } else { WIDE } => {
            let sort = model.sort.name();
            format!("q quit   ? help   Tab services   s sort: {sort}   r reverse   k end   {filter}")
        }
        View::Sessions => format!("q quit  ? help  Tab services  {filter}"),
        View::Services if is_short => format!("q quit  ? help  Tab backends  Esc sessions  {filter}"),
        View::Services => format!("q quit  ? help  Tab backends  {filter}"),
        View::Backends => format!("q quit  ? help  Tab sessions  {filter}"),
    };
    if model.has_more {
        text.insert_str(0, &format!("first {}  ", model.rows.len()));
    }
    Line::styled(text, DIM)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::*;
    use crate::api::{
        Backend, BackendCounts, Health, Limits, Pipes, Rates, ReasonCount, Recent, ServiceStatus, SessionCounts,
        Status, TlsStatus, Trouble,
    };
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
                fallbacks: vec![ReasonCount {
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
            "tls 2 certificates, the first expires in 47 days (2027-01-12)"
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
            "End session 1201? y = yes, any other key = no   192.0.2.1:50001"
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

    /// Two services, of which one has lost its backends.
    fn failing() -> Model {
        let mut model = model();
        let recent = Recent {
            over_seconds: 60.0,
            sessions: 416,
            failed: 416,
            refused: 0,
            reasons: vec![ReasonCount {
                reason: "denied:no_backend".to_owned(),
                count: 416,
            }],
        };
        let backend = |name: &str, why: &str| Backend {
            name: name.to_owned(),
            state: "down".to_owned(),
            trouble: Some(Trouble {
                since: "2026-11-27T00:31:23Z".to_owned(),
                for_seconds: 125,
                why: why.to_owned(),
            }),
            ..Backend::default()
        };
        let service = |name: &str| ServiceStatus {
            name: name.to_owned(),
            state: "accepting".to_owned(),
            ..ServiceStatus::default()
        };
        let dead = ServiceStatus {
            health: Health::Failing,
            recent,
            backend_counts: Some(BackendCounts {
                up: 0,
                draining: 0,
                all: 2,
            }),
            backends: vec![
                backend("192.0.2.1:80", "cannot connect to 192.0.2.1:80: Connection refused"),
                backend("192.0.2.2:80", "no answer in time"),
            ],
            ..service("web")
        };
        model.status.services = vec![service("socks5"), dead];
        model
    }

    #[test]
    fn the_views_of_services_and_backends_say_what_fails_and_why() {
        let mut model = failing();
        let lines = |model: &mut Model, width| {
            let screen = drawn(model, width, 24);
            screen.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(&mut model, 60)[3], "failing: web (0 of 2 backends up)");
        model.key(KeyEvent::from(KeyCode::Tab));
        let screen = lines(&mut model, 100);
        assert_eq!(
            screen[6],
            "web                100 %   0 of 2       0     0.0      0 B      0 B 416 denied:no_backend"
        );
        assert!(screen[7].starts_with("socks5    "), "{screen:?}");
        assert_eq!(
            lines(&mut model, 60)[6],
            "web                 100 %   0 of 2       0      0 B      0 B"
        );
        model.key(KeyEvent::from(KeyCode::Tab));
        assert_eq!(
            lines(&mut model, 60)[6],
            "192.0.2.1:80           down      2m05s Connection refused"
        );
        let wide = lines(&mut model, 120);
        assert!(
            wide[6].starts_with("web ") && wide[7].ends_with(" 2m05s no answer in time"),
            "{wide:?}"
        );
    }

    #[test]
    fn a_session_has_its_service_and_narrow_screens_have_short_lines() {
        let screen = drawn(&mut failing(), 80, 24);
        assert!(screen.contains("\nID     SERVICE    CLIENT "), "{screen}");
        assert!(screen.contains("\n1201   socks5     192.0.2.1:"), "{screen}");
        let narrow = drawn(&mut failing(), 60, 24);
        for line in [
            "sessions 18/500000, 0.4/s  up 4.7 KiB/s  down 38 MiB/s",
            "192.0.2.1:50001    198.51.100.7:443     300 B  19 MiB 17m17s",
            "q quit  ? help  Tab services  / filter",
        ] {
            assert!(narrow.lines().any(|have| have == line), "{narrow}");
        }
        let mut model = failing();
        model.key(KeyEvent::from(KeyCode::Char('?')));
        assert!(drawn(&mut model, 60, 24).contains("leaves the view, then"));
    }

    #[test]
    fn addresses_have_room_and_a_silent_program_is_not_called_ready() {
        let mut model = failing();
        for row in &mut model.rows {
            row.session.quota_used = Some(0.5);
        }
        let screen = drawn(&mut model, 80, 30);
        let row = "\n1205   socks5     192.0.2.5:50005     198.51.100.7:443 ";
        assert!(
            screen.contains(row) && screen.contains(" (dial) 198.51.100.… "),
            "{screen}"
        );
        model.key(KeyEvent::from(KeyCode::Char('3')));
        assert!(drawn(&mut model, 80, 24).contains(" 192.0.2.1:80 "));
        model.miss("no answer within 5s".to_owned());
        let screen = drawn(&mut model, 80, 24);
        assert!(screen.starts_with("spliceway 0.1.0  no answer for 0s  up "), "{screen}");
        assert!(screen.ends_with("\nno answer within 5s\n"), "{screen}");
        model.key(KeyEvent::from(KeyCode::Char('?')));
        let low = drawn(&mut model, 60, 16);
        assert!(low.contains("UP, DOWN ") && low.contains("any key"), "{low}");
    }

    #[test]
    fn every_size_of_screen_can_be_drawn() {
        for (width, height) in [(1, 1), (20, 5), (80, 2), (200, 60)] {
            drawn(&mut model(), width, height);
        }
        assert!(drawn(&mut model(), 120, 24).contains("IDLE"));
    }
}
