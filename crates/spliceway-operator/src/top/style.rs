//! What the views of `spliceway top` share.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Cell;

/// A narrower screen leaves out the columns that are not needed to find a session.
pub(super) const NARROW: u16 = 80;

pub(super) const DIM: Style = Style::new().fg(Color::DarkGray);
pub(super) const HEAD: Style = Style::new().add_modifier(Modifier::REVERSED);

pub(super) fn cell(text: String, is_number: bool) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if is_number { line.right_aligned() } else { line })
}
