//! What the views of `spliceway top` share.

use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Cell;

/// A narrower screen leaves out the columns that are not needed to find a session.
pub(super) const NARROW: u16 = 80;

/// No color: some themes draw dark gray in the color of the background.
pub(super) const DIM: Style = Style::new().add_modifier(Modifier::DIM);
pub(super) const HEAD: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Shortens a text, so that its end shows that a part is missing.
pub(super) fn fit(text: &str, width: u16) -> String {
    let width = usize::from(width);
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept = text.chars().take(width.saturating_sub(1));
    kept.chain(['…']).collect()
}

pub(super) fn cell(text: String, is_number: bool) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if is_number { line.right_aligned() } else { line })
}
