//! Tables of medians with their spread, and ratios to the first arm of the same round.

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
            let ratios = samples
                .iter()
                .zip(&rows[0].figures[index])
                .map(|(ours, first)| ours / first)
                .collect();
            let (low, high) = samples
                .iter()
                .fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
            let figure = format!(
                "{:.decimals$} ({low:.decimals$}–{high:.decimals$}) {:>6.3} ×",
                median(samples.clone()),
                median(ratios)
            );
            print!("{figure:>34}");
        }
        println!();
    }
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
