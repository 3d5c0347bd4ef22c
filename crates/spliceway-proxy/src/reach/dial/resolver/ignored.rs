//! What a reader of a system file reports of lines that it ignores.

/// The lines of a file that were ignored.
#[derive(Debug, Default)]
pub(super) struct Ignored {
    pub(super) count: usize,
    /// The number of the first line, and the reason.
    pub(super) first: Option<(usize, &'static str)>,
}

impl Ignored {
    pub(super) fn add(&mut self, line: usize, why: &'static str) {
        self.count += 1;
        self.first.get_or_insert((line, why));
    }
}
