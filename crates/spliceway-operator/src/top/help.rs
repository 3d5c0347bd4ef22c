//! The help of `spliceway top`.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

/// Fits into 60 columns.
pub(super) const KEYS: &[&str] = &[
    "1 2 3      sessions, services, backends; Tab = the next one",
    "/          filter: client, target, user, service, state",
    "Esc        clears the filter, then leaves the view, then",
    "           quits",
    "q          quit",
    "",
    "In the view of sessions:",
    "↑ ↓        select; also PgUp, PgDn, Home, End",
    "s          sort by the next column; r = reverse",
    "k          end the selected session, after a question",
    "",
    "SPL        share of the bytes that were spliced",
    "FAILING    share of the sessions of the last minute that",
    "           failed",
    "UP, DOWN   to the target, to the client",
];

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<_> = KEYS.iter().map(|line| Line::from(*line)).collect();
    frame.render_widget(Paragraph::new(lines), area);
}
