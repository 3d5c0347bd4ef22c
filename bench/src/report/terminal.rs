//! Tables for the terminal: medians with their spread, ratios to the first row, and what a table is fine enough to tell.

use serde::{Deserialize, Serialize};

use super::apart::Apart;
use super::{median, median_interval, paired, spread};
use crate::scenario::Table;

/// Prints the table of a scenario: of each figure the median, the spread of the rounds, and the ratio to the first row but `direct`
/// (median of the ratios round by round, as the machine's speed drifts between rounds).
#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
pub(crate) fn print_table(table: &Table, conditions: &str) {
    heading(&table.title, table.rounds, conditions);
    let titles: Vec<(String, usize)> = table
        .figures
        .iter()
        .map(|figure| (format!("{}, {}", figure.name, figure.unit), figure.decimals))
        .collect();
    let rows: Vec<Row> = table
        .rows
        .iter()
        .map(|row| Row {
            name: row.arm.name().into(),
            figures: row.samples.clone(),
        })
        .collect();
    if !rows.is_empty() {
        let titles: Vec<(&str, usize)> = titles
            .iter()
            .map(|(title, decimals)| (title.as_str(), *decimals))
            .collect();
        print(&titles, &rows);
    }
    for (arm, why) in &table.skipped {
        println!("{:<28}skipped: {why}", arm.name());
    }
}

/// The same of what is apart.
pub(crate) fn print_apart(apart: &Apart, conditions: &str) {
    heading(&apart.title, apart.rounds, conditions);
    let titles: Vec<(String, usize)> = apart
        .figures
        .iter()
        .map(|figure| (format!("{}, {}", figure.name, figure.unit), figure.decimals))
        .collect();
    let titles: Vec<(&str, usize)> = titles
        .iter()
        .map(|(title, decimals)| (title.as_str(), *decimals))
        .collect();
    print(&titles, &apart.rows);
}

/// One arm's samples of each figure, a sample per round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    #[serde(rename = "samples")]
    pub(crate) figures: Vec<Vec<f64>>,
}

/// Prints a table: for each figure the median, the spread of the rounds, and the ratio to the first row's (median of the
/// ratios round by round, as the machine's speed drifts between rounds).
#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
pub(crate) fn print(figures: &[(&str, usize)], rows: &[Row]) {
    print!("{:<28}", "");
    for (title, _) in figures {
        print!("{title:>34}");
    }
    println!();
    for row in rows {
        print!("{:<28}", row.name);
        for (index, (_, decimals)) in figures.iter().enumerate() {
            let samples = &row.figures[index];
            let (low, high) = spread(samples);
            let figure = format!(
                "{:.decimals$} ({low:.decimals$}–{high:.decimals$}) {:>6.3} ×",
                median(samples.clone()),
                median(ratios(row, &rows[0], index))
            );
            print!("{figure:>34}");
        }
        println!();
    }
}

/// Prints a table of the first figure as ratios to the first row, with their spread and the interval that holds their median at 19
/// times of 20. The second row is the first measured again: how far its interval is from 1 is what the table cannot tell.
#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
pub(crate) fn print_small_differences((title, decimals): (&str, usize), rows: &[Row]) {
    println!("{:<28}{title:>28}{:>26}{:>18}", "", "ratio", "19 of 20");
    for row in rows {
        let ratios = ratios(row, &rows[0], 0);
        let ((low, high), (from, to)) = (spread(&ratios), median_interval(&ratios));
        println!(
            "{:<28}{:>28.decimals$}{:>26}{:>18}",
            row.name,
            median(row.figures[0].clone()),
            format!("{:.3} ({low:.3}–{high:.3})", median(ratios)),
            format!("{from:.3}–{to:.3}"),
        );
    }
    let (from, to) = median_interval(&ratios(&rows[1], &rows[0], 0));
    let noise = (1.0 - from).max(to - 1.0) * 100.0;
    let verdict = match noise {
        ..1.0 => "This run can tell 1 %.",
        _ => "This run is too noisy to tell 1 %.",
    };
    println!("The same program measured twice differs by up to {noise:.1} %. {verdict}");
}

/// Prints what a reader elsewhere needs to judge a table by.
#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
pub(crate) fn heading(scenario: &str, rounds: usize, conditions: &str) {
    println!("{scenario}: median of {rounds} interleaved rounds (lowest–highest), ratio to the first row");
    println!("{}; {conditions}", crate::machine::describe());
}

fn ratios(row: &Row, first: &Row, figure: usize) -> Vec<f64> {
    paired(&row.figures[figure], &first.figures[figure])
}
