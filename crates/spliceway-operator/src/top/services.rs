//! The views of services and of backends, and the line that says which services fail.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table};

use super::model::Model;
use super::style::{HEAD, NARROW, cell};
use crate::api::{Health, ServiceStatus};
use crate::health;
use crate::text::bytes;

/// The columns of a narrower screen leave no room for why a service fails.
const WITH_REASONS: u16 = 90;

/// Returns a line that says which services fail.
pub(super) fn summary(model: &Model) -> Option<Line<'static>> {
    let (text, health) = health::summary(&model.status.services)?;
    Some(Line::styled(text, style(health)))
}

fn style(health: Health) -> Style {
    match health {
        Health::Failing => Style::new().fg(Color::Red),
        Health::Degraded => Style::new().fg(Color::Yellow),
        Health::Ok => Style::new(),
    }
}

pub(super) fn draw_services(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let has_reasons = area.width >= WITH_REASONS;
    let mut columns = vec![
        ("SERVICE", Constraint::Fill(1), false),
        ("FAILING", Constraint::Length(7), true),
        ("BACKENDS", Constraint::Length(8), true),
        ("OPEN", Constraint::Length(7), true),
        ("NEW/s", Constraint::Length(7), true),
        ("UP/s", Constraint::Length(8), true),
        ("DOWN/s", Constraint::Length(8), true),
    ];
    if has_reasons {
        columns.push(("WHY", Constraint::Fill(2), false));
    }
    let services = model.services();
    let rows = services.iter().map(|service| {
        let mut cells = vec![
            cell(named(service), false),
            cell(service.recent.failing(), true),
            cell(backends(service), true),
            cell(service.sessions.active.to_string(), true),
            cell(format!("{:.1}", service.rates.sessions), true),
            cell(bytes(service.rates.bytes_up), true),
            cell(bytes(service.rates.bytes_down), true),
        ];
        if has_reasons {
            cells.push(cell(service.recent.why(), false));
        }
        Row::new(cells).style(style(service.health))
    });
    draw(frame, area, &columns, rows.collect());
}

/// Returns the name, and the state if the service does not accept clients.
fn named(service: &ServiceStatus) -> String {
    match &*service.state {
        "accepting" => service.name.clone(),
        state => format!("{} ({state})", service.name),
    }
}

fn backends(service: &ServiceStatus) -> String {
    let counts = service.backend_counts;
    counts.map_or_else(|| "-".to_owned(), |counts| format!("{} of {}", counts.up, counts.all))
}

pub(super) fn draw_backends(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let is_wide = area.width >= NARROW;
    let mut columns = vec![
        ("BACKEND", Constraint::Fill(2), false),
        ("STATE", Constraint::Length(8), false),
        ("FOR", Constraint::Length(6), true),
        ("WHY", Constraint::Fill(if is_wide { 3 } else { 2 }), false),
    ];
    if is_wide {
        columns.insert(0, ("SERVICE", Constraint::Length(12), false));
        columns.insert(3, ("OPEN", Constraint::Length(6), true));
        columns.insert(4, ("FAILED", Constraint::Length(7), true));
    }
    let backends = model.backends();
    let rows = backends.iter().map(|(service, backend)| {
        let (age, why) = backend.trouble().unwrap_or_default();
        let health = if backend.trouble.is_some() {
            Health::Failing
        } else {
            Health::Ok
        };
        let mut cells = vec![
            cell(backend.name.clone(), false),
            cell(backend.state.clone(), false),
            cell(age, true),
            cell(why.to_owned(), false),
        ];
        if is_wide {
            cells.insert(0, cell(service.name.clone(), false));
            cells.insert(3, cell(backend.sessions.to_string(), true));
            cells.insert(4, cell(backend.failures.to_string(), true));
        }
        Row::new(cells).style(style(health))
    });
    draw(frame, area, &columns, rows.collect());
}

fn draw(frame: &mut Frame<'_>, area: Rect, columns: &[(&str, Constraint, bool)], mut rows: Vec<Row<'static>>) {
    if rows.is_empty() {
        rows.push(Row::new([cell("none".to_owned(), false)]));
    }
    let head = columns
        .iter()
        .map(|(name, _, is_number)| cell((*name).to_owned(), *is_number));
    let widths = columns.iter().map(|(_, width, _)| *width);
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(HEAD))
        .column_spacing(1);
    frame.render_widget(table, area);
}
