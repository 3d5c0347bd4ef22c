//! Tables of medians with their spread, and ratios to the first arm of the same round; and what a table is fine enough to tell.

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

/// One arm's samples of one figure, a sample per round.
pub(crate) struct Row {
    pub(crate) name: String,
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

fn ratios(row: &Row, first: &Row, figure: usize) -> Vec<f64> {
    let pairs = row.figures[figure].iter().zip(&first.figures[figure]);
    pairs.map(|(ours, first)| ours / first).collect()
}

fn spread(samples: &[f64]) -> (f64, f64) {
    let both = |(low, high): (f64, f64), x: &f64| (low.min(*x), high.max(*x));
    samples.iter().fold((f64::MAX, f64::MIN), both)
}

/// The interval that holds the median of what was sampled, at 19 times of 20 or more: as many samples are left out on either side as
/// fewer tosses of a coin show heads at no more than one time of 40. Below six samples that is none, and the interval is too short.
fn median_interval(samples: &[f64]) -> (f64, f64) {
    let mut samples = samples.to_vec();
    samples.sort_by(f64::total_cmp);
    let count = samples.len();
    let (mut left_out, mut chance, mut sum) = (0, 0.5_f64.powi(count as i32), 0.0);
    while left_out < count / 2 && sum + chance <= 1.0 / 40.0 {
        sum += chance;
        chance *= (count - left_out) as f64 / (left_out + 1) as f64;
        left_out += 1;
    }
    let outermost = left_out.saturating_sub(1);
    (samples[outermost], samples[count - 1 - outermost])
}

/// Prints what a reader elsewhere needs to judge a table by.
#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
pub(crate) fn heading(scenario: &str, rounds: usize, conditions: &str) {
    println!("{scenario}: median of {rounds} interleaved rounds (lowest–highest), ratio to the first row");
    println!("{}; {conditions}", crate::machine::describe());
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    if samples.len() % 2 == 1 {
        samples[middle]
    } else {
        (samples[middle - 1] + samples[middle]) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_leaves_out_what_tables_of_the_sign_test_say() {
        for (count, outermost) in [(1, 0), (5, 0), (6, 0), (9, 1), (15, 3), (21, 5), (40, 13)] {
            let samples: Vec<f64> = (0..count).rev().map(f64::from).collect();
            let expected = (f64::from(outermost), f64::from(count - 1 - outermost));
            assert_eq!(median_interval(&samples), expected, "of {count}");
        }
    }
}
