//! Where spliceway is worse: every comparison of the run in which that is proven, and the rows of
//! the page in which it is possible.

use crate::contender::{OURS, PROGRAM, REFERENCE};
use crate::load::CHURN;
use crate::page::Results;
use crate::results::Figure::{Cpu, Latency, Rate};
use crate::results::PERCENTILES;
use crate::summary::{self, Comparison, NO_LOG, Summary, of_load, of_table};
use crate::verdict::{Ratio, Verdict};

/// A smaller difference of an undecided row is not listed.
const VISIBLE: f64 = 0.05;

/// Returns both lists, as text.
pub(crate) fn worse(summary: &Summary<'_>) -> String {
    let all = comparisons(summary.results);
    let ratios: Vec<Ratio> = all
        .iter()
        .flat_map(|(_, _, one)| ratios(one))
        .map(|(_, ratio)| ratio)
        .collect();
    let proven: Vec<String> = all
        .iter()
        .filter_map(|(row, subject, one)| loss(row, subject, one))
        .collect();
    let count = |verdict| ratios.iter().filter(|ratio| ratio.verdict() == verdict).count();
    let [worse, better] = [Verdict::Worse, Verdict::Better].map(count);
    let proven = if proven.is_empty() {
        format!("Proven: in none of {} comparisons (better in {better}).", ratios.len())
    } else {
        format!(
            "Proven, in {worse} of {} comparisons (better in {better}): {}.",
            ratios.len(),
            proven.join("; ")
        )
    };
    let possible: Vec<String> = summary
        .rows
        .iter()
        .filter_map(|(row, one)| possible(&row.name(), row.subject, one))
        .collect();
    if possible.is_empty() {
        return proven;
    }
    format!(
        "{proven} Possible, in the table below (more than {:.0} % worse, but the interval contains 1.00): {}.",
        VISIBLE * 100.0,
        possible.join("; ")
    )
}

/// Returns every comparison of the library and of the program, with the names of row and subject.
fn comparisons(results: &Results) -> Vec<(String, &'static str, Comparison<'_>)> {
    const SUBJECTS: [&str; 3] = [OURS, PROGRAM, NO_LOG];
    let mut all = Vec::new();
    for measured in &results.loads {
        let latencies = PERCENTILES.map(|(part, _)| Latency(part));
        let rate = (measured.load == CHURN).then_some(Rate);
        let names = measured.contenders();
        for figure in [Cpu].into_iter().chain(rate).chain(latencies) {
            for subject in SUBJECTS.into_iter().filter(|name| names.contains(name)) {
                let row = summary::row_name(&measured.load, &measured.profile);
                all.push((row, subject, of_load(measured, figure, subject)));
            }
        }
    }
    for figures in results.programs.iter().chain(&results.idle) {
        for subject in SUBJECTS.into_iter().filter(|name| figures.of(name).is_some()) {
            all.push((format!("`{}`", figures.title), subject, of_table(figures, subject)));
        }
    }
    all
}

/// Returns a subject's ratios to tokio and to the best peer. They are one if tokio is the best.
fn ratios<'a>(one: &Comparison<'a>) -> Vec<(&'a str, Ratio)> {
    let tokio = one.tokio.map(|ratio| ("tokio", ratio));
    let peer = one.peer.filter(|(name, _)| *name != REFERENCE);
    tokio.into_iter().chain(peer).collect()
}

/// Returns a subject's name after that of the row. Rows without a name are about the library.
fn named(subject: &str) -> String {
    match subject {
        OURS => String::new(),
        _ => format!(", {subject}"),
    }
}

/// Returns the contenders to which the subject is worse, as text.
fn loss(row: &str, subject: &str, one: &Comparison<'_>) -> Option<String> {
    let is_worse = |(_, ratio): &(&str, Ratio)| ratio.verdict() == Verdict::Worse;
    let worse: Vec<String> = ratios(one)
        .into_iter()
        .filter(is_worse)
        .map(|(name, ratio)| format!("{} times {name}", ratio.ratio.show(2)))
        .collect();
    (!worse.is_empty()).then(|| format!("{row}{}: {} {}", named(subject), one.quantity, worse.join(", ")))
}

/// Names a row once, with the best peer if that may be better.
fn possible(row: &str, subject: &str, one: &Comparison<'_>) -> Option<String> {
    let is_listed = |(_, ratio): &(&str, Ratio)| ratio.verdict() == Verdict::Undecided && ratio.is_worse_by(VISIBLE);
    let (name, ratio) = ratios(one).into_iter().rfind(is_listed)?;
    Some(format!(
        "{row}{}: {} {:.2} times {name}",
        named(subject),
        one.quantity,
        ratio.ratio.value
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::AGAIN;
    use crate::figures::Figures;

    /// Rounds of a program that the page does not show in a row of its own.
    fn results(again: f64) -> Results {
        let mut figures = Figures::new("pgbench like TPC-B, 4 clients, CPU", "% of the relay's core", 0);
        for (name, busy) in [(REFERENCE, 50.0), (OURS, 50.0), (AGAIN, again), (PROGRAM, 60.0)] {
            (0..6).for_each(|_| figures.add(name, busy));
        }
        Results {
            programs: vec![figures],
            ..Results::default()
        }
    }

    #[test]
    fn a_loss_is_listed_although_the_page_has_no_row_for_it() {
        let said = |again| worse(&Summary::new(&results(again)));
        assert_eq!(
            said(50.0),
            "Proven, in 1 of 2 comparisons (better in 0): `pgbench like TPC-B, 4 clients, CPU`, spliceway forward: \
             use of the core 1.20 [1.20, 1.20] times tokio."
        );
        assert_eq!(
            said(55.0),
            "Proven: in none of 2 comparisons (better in 0).",
            "the control is invalid"
        );
    }
}
