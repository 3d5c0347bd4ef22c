//! The views of services and of backends, and the line that says which services fail.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table};

use super::model::Model;
use super::style::{HEAD, NARROW, cell, fit};
use crate::api::{Health, ServiceStatus};
use crate::health;
use crate::text::bytes;

/// The columns of a narrower screen leave no room for why a service fails.
const WITH_REASONS: u16 = 90;

/// The columns of a narrower screen leave no room for the counts of a backend.
const WITH_COUNTS: u16 = 100;

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
    // A narrow screen needs the room for names.
    let without = (area.width < NARROW).then_some(4);
    without.map(|column| columns.remove(column));
    if has_reasons {
        columns.push(("WHY", Constraint::Fill(2), false));
    }
    let services = model.services();
    let rows = services.iter().map(|service| {
        let mut cells = vec![
            named(service),
            service.recent.failing(),
            backends(service),
            service.sessions.active.to_string(),
            format!("{:.1}", service.rates.sessions),
            bytes(service.rates.bytes_up),
            bytes(service.rates.bytes_down),
        ];
        without.map(|column| cells.remove(column));
        if has_reasons {
            cells.push(service.recent.why());
        }
        (cells, style(service.health))
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
    let (is_wide, has_counts) = (area.width >= NARROW, area.width >= WITH_COUNTS);
    let mut columns = vec![
        ("BACKEND", Constraint::Fill(2), false),
        ("STATE", Constraint::Length(8), false),
        ("FOR", Constraint::Length(6), true),
        ("WHY", Constraint::Fill(if is_wide { 3 } else { 2 }), false),
    ];
    if is_wide {
        columns.insert(0, ("SERVICE", Constraint::Length(12), false));
    }
    if has_counts {
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
        let mut cells = vec![backend.name.clone(), backend.state.clone(), age, why.to_owned()];
        if is_wide {
            cells.insert(0, service.name.clone());
        }
        if has_counts {
            cells.insert(3, backend.sessions.to_string());
            cells.insert(4, backend.failures.to_string());
        }
        (cells, style(health))
    });
    draw(frame, area, &columns, rows.collect());
}

/// Draws rows of texts. A text that does not fit is shortened.
fn draw(frame: &mut Frame<'_>, area: Rect, columns: &[(&str, Constraint, bool)], mut rows: Vec<(Vec<String>, Style)>) {
    if rows.is_empty() {
        rows.push((vec!["none".to_owned()], Style::new()));
    }
    let constraints = columns.iter().map(|(_, width, _)| *width);
    let widths = Layout::horizontal(constraints).spacing(1).split(area);
    let cells = |texts: Vec<String>| {
        let places = texts.into_iter().zip(columns).zip(widths.iter());
        places
            .map(|((text, (_, _, is_number)), place)| cell(fit(&text, place.width), *is_number))
            .collect::<Row<'_>>()
    };
    let head = columns.iter().map(|(name, _, _)| (*name).to_owned()).collect();
    let rows = rows.into_iter().map(|(texts, style)| cells(texts).style(style));
    let table = Table::new(rows, widths.iter().map(|place| place.width))
        .header(cells(head).style(HEAD))
        .column_spacing(1);
    frame.render_widget(table, area);
}
