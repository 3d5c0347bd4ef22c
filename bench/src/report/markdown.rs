//! The generated blocks of a document that people write around them.
//!
//! ```text
//! <!-- generated: bulk -->
//! a table, replaced at every run
//! <!-- end -->
//! ```
//!
//! What is outside the markers stays as it is, byte for byte, and so does a block whose name stands for nothing in the results.

use super::json::{Measured, Quantity, Results, Samples};
use super::regret::{self, Beaten, Kind, Regret, is_noisy};
use super::{median, paired, spread};
use crate::arms::{Arm, Role};
use crate::scenario::Better;

const BEGIN: &str = "<!-- generated: ";
const BEGIN_ENDS: &str = " -->";
const END: &str = "<!-- end -->";

/// Columns of one table at most, so that it fits a screen.
const COLUMNS: usize = 5;

/// The document with its blocks filled in.
pub(crate) fn fill_in(document: &str, results: &Results) -> Result<String, String> {
    let mut written = String::with_capacity(document.len());
    let mut lines = document.split_inclusive('\n');
    while let Some(line) = lines.next() {
        written += line;
        let Some(name) = name_of(line) else { continue };
        let mut old = String::new();
        let end = loop {
            match lines.next() {
                Some(line) if line.trim_end() == END => break line,
                Some(line) if name_of(line).is_none() => old += line,
                _ => return Err(format!("the block {name} has no end")),
            }
        };
        written += &block(name, results).unwrap_or(old);
        written += end;
    }
    Ok(written)
}

fn name_of(line: &str) -> Option<&str> {
    line.trim_end().strip_prefix(BEGIN)?.strip_suffix(BEGIN_ENDS)
}

/// Kinds of scenarios that no block of the document shows.
pub(crate) fn unmentioned<'r>(document: &str, results: &'r Results) -> Vec<&'r str> {
    let names: Vec<&str> = document.lines().filter_map(name_of).collect();
    let is_shown = |one: &&Measured| names.iter().any(|name| one.is_of(name));
    let mut kinds: Vec<&str> = results
        .scenarios
        .iter()
        .filter(|one| !is_shown(one))
        .map(Measured::kind)
        .collect();
    kinds.dedup();
    let apart = results.apart.iter().map(|one| one.id.as_str());
    kinds.extend(apart.filter(|id| !names.contains(id)));
    kinds
}

/// Where nobody has written a document yet: a block of everything.
pub(crate) fn empty_document(results: &Results) -> String {
    let mut names = vec!["conditions", "summary", "regret"];
    names.extend(results.scenarios.iter().map(Measured::kind));
    names.extend(results.apart.iter().map(|one| one.id.as_str()));
    names.dedup();
    let blocks = names.iter().map(|name| format!("\n{BEGIN}{name}{BEGIN_ENDS}\n{END}\n"));
    format!("# Measurements\n{}", blocks.collect::<String>())
}

fn block(name: &str, results: &Results) -> Option<String> {
    match name {
        "conditions" => Some(conditions(results)),
        "summary" => Some(summary(results)),
        "regret" => Some(regrets(results)),
        _ => {
            if let Some(apart) = results.apart.iter().find(|one| one.id == name) {
                return Some(apart.block());
            }
            let scenarios: Vec<&Measured> = results.scenarios.iter().filter(|one| one.is_of(name)).collect();
            let kinds = scenarios.chunk_by(|a, b| a.kind() == b.kind());
            let groups: Vec<String> = kinds.map(group).collect();
            (!groups.is_empty()).then(|| groups.join("\n"))
        }
    }
}

fn conditions(results: &Results) -> String {
    let environment = &results.environment;
    let mut text = format!("- machine: {}\n", environment.machine);
    text += &format!("- congestion control: {}\n", environment.conditions);
    let sysctls = environment
        .sysctls
        .iter()
        .map(|(name, value)| format!("`{name}` {value}"));
    text += &format!("- sysctls: {}\n", sysctls.collect::<Vec<_>>().join(", "));
    let peers = environment
        .peers
        .iter()
        .map(|(name, version)| format!("{name} {version}"));
    text += &format!("- versions: {}\n", peers.collect::<Vec<_>>().join(", "));
    for command in &results.commands {
        text += &format!("- `{command}`\n");
    }
    text
}

/// Of each scenario ours against tokio and the best peer.
fn summary(results: &Results) -> String {
    let mut rows = Vec::new();
    for scenario in &results.scenarios {
        let Some(ours) = scenario.rows.iter().find(|row| row.arm == Arm::Spliceway.name()) else {
            continue;
        };
        let again = scenario.rows.iter().find(|row| row.arm == Arm::Again.name());
        for (index, figure) in scenario.figures.iter().enumerate() {
            if Kind::of(figure).is_none() {
                continue;
            }
            let best = best_peer(scenario, index).map_or("–", |best| &best.arm);
            rows.push(vec![
                scenario.id.clone(),
                title(figure),
                median_and_spread(&ours.samples[index], figure.decimals),
                ratio_to(scenario, ours, Arm::FIRST.name(), index),
                ratio_to(scenario, ours, best, index),
                best.into(),
                again.map_or("–".into(), |again| ratio_to(scenario, again, &ours.arm, index)),
            ]);
        }
    }
    table(
        &[
            "scenario",
            "figure",
            "spliceway",
            "to tokio",
            "to the best peer",
            "which is",
            "the same again",
        ],
        &rows,
    )
}

fn regrets(results: &Results) -> String {
    let all = regret::of_all(results);
    let mut head = vec!["relay", "regret", "where, and to whom", "in every round"];
    head.extend(Kind::ALL.map(Kind::name));
    head.push("scenarios");
    let row = |regret: &Regret| {
        let mut cells = vec![
            name_in_table(&regret.arm, regret.role),
            format!("{:.2}", regret.factor()),
        ];
        cells.push(match regret.whole() {
            Some(worst) => format!("{} in {}, {}", worst.kind.name(), worst.scenario, worst.by),
            None => "nobody is better".into(),
        });
        cells.push(match &regret.in_every_round {
            Some(worst) => {
                let Beaten {
                    factor,
                    kind,
                    scenario,
                    by,
                } = worst;
                format!("{factor:.2} ({} in {scenario}, {by})", kind.name())
            }
            None => "1.00".into(),
        });
        for (by_kind, compared) in regret.by_kind.iter().zip(regret.compared) {
            cells.push(match (by_kind, compared) {
                (Some(beaten), _) => format!("{:.2} ({})", beaten.factor, beaten.scenario),
                (None, true) => "1.00".into(),
                (None, false) => "–".into(),
            });
        }
        cells.push(regret.scenarios.to_string());
        cells
    };
    table(&head, &all.iter().map(row).collect::<Vec<_>>())
}

/// The scenarios of one kind: a table for each figure with a column for each scenario, or where there is but one scenario, a table with a
/// column for each figure.
fn group(scenarios: &[&Measured]) -> String {
    let common = common_parts(scenarios);
    let mut rounds: Vec<usize> = scenarios.iter().map(|one| one.rounds).collect();
    rounds.sort_unstable();
    rounds.dedup();
    let rounds: Vec<String> = rounds.iter().map(ToString::to_string).collect();
    let mut text = format!(
        "**{}**: median of {} rounds (lowest–highest); below it, the ratio to tokio · to the best peer\n",
        common.join(", "),
        rounds.join(" or ")
    );
    match scenarios {
        [only] => {
            let columns = only.figures.iter().enumerate();
            let columns = columns.map(|(index, figure)| (title(figure), *only, index));
            text += &tables("relay", &columns.collect::<Vec<_>>());
        }
        _ => {
            for figure in all_figures(scenarios) {
                if is_only_for_one(figure) {
                    continue;
                }
                let column = |scenario: &&'_ Measured| {
                    let index = scenario.figures.iter().position(|other| other.name == figure.name)?;
                    Some((own_parts(&scenario.title, &common), index))
                };
                let columns: Vec<_> = scenarios
                    .iter()
                    .filter_map(|scenario| column(scenario).map(|(head, index)| (head, *scenario, index)))
                    .collect();
                text += &tables(&title(figure), &columns);
            }
        }
    }
    text + &skipped(scenarios)
}

/// Those of the first, and those that only others have.
fn all_figures<'m>(scenarios: &[&'m Measured]) -> Vec<&'m Quantity> {
    let mut all: Vec<&Quantity> = Vec::new();
    for figure in scenarios.iter().flat_map(|scenario| &scenario.figures) {
        if !all.iter().any(|known| known.name == figure.name) {
            all.push(figure);
        }
    }
    all
}

/// Percentiles besides p99 are in the JSON and the plot.
fn is_only_for_one(figure: &Quantity) -> bool {
    figure.name.starts_with('p') && figure.name[1..].parse::<f64>().is_ok() && Kind::of(figure).is_none()
}

/// What a title says in parts that all titles have, and in those that are its own.
fn common_parts<'m>(scenarios: &[&'m Measured]) -> Vec<&'m str> {
    let parts = scenarios[0].title.split(", ");
    let is_common = |part: &&str| {
        scenarios
            .iter()
            .all(|one| one.title.split(", ").any(|other| other == *part))
    };
    parts.filter(is_common).collect()
}

fn own_parts(title: &str, common: &[&str]) -> String {
    let own: Vec<&str> = title.split(", ").filter(|part| !common.contains(part)).collect();
    own.join(", ")
}

/// A column: its head, its scenario and its figure.
type Column<'m> = (String, &'m Measured, usize);

/// All arms against these columns, so many at a time as fit.
fn tables(corner: &str, columns: &[Column<'_>]) -> String {
    let mut arms: Vec<(&str, Role)> = Vec::new();
    for row in columns.iter().flat_map(|(_, scenario, _)| &scenario.rows) {
        if !arms.iter().any(|(arm, _)| *arm == row.arm) {
            arms.push((&row.arm, row.role));
        }
    }
    let mut text = String::new();
    // As many tables as it takes, of the same width.
    let width = columns.len().div_ceil(columns.len().div_ceil(COLUMNS));
    for columns in columns.chunks(width) {
        let mut head = vec![corner];
        head.extend(columns.iter().map(|(head, _, _)| head.as_str()));
        let row = |(arm, role): &(&str, Role)| {
            let mut cells = vec![name_in_table(arm, *role)];
            cells.extend(columns.iter().map(|(_, scenario, figure)| cell(scenario, arm, *figure)));
            cells
        };
        text += "\n";
        text += &table(&head, &arms.iter().map(row).collect::<Vec<_>>());
    }
    text
}

/// What one arm showed: `0.153 (0.148–0.163)`, and below it its ratios to tokio and to the best peer.
fn cell(scenario: &Measured, arm: &str, index: usize) -> String {
    let Some(row) = scenario.rows.iter().find(|row| row.arm == arm) else {
        return "–".into();
    };
    let figure = &scenario.figures[index];
    // No relay takes no CPU time: that is no figure of it.
    if row.role == Role::Direct && Kind::of(figure) == Some(Kind::Cpu) {
        return "–".into();
    }
    let value = median_and_spread(&row.samples[index], figure.decimals);
    if is_noisy(scenario, row) {
        return format!("{value}<br>too noisy to judge");
    }
    let to_tokio = ratio_to(scenario, row, Arm::FIRST.name(), index);
    let to_best = best_peer(scenario, index).map_or("–".into(), |best| ratio_to(scenario, row, &best.arm, index));
    format!("{value}<br>{to_tokio} · {to_best}")
}

/// The peer with the best median.
fn best_peer(scenario: &Measured, figure: usize) -> Option<&Samples> {
    let peers = scenario.rows.iter().filter(|row| row.role == Role::Peer);
    let of = |row: &Samples| median(row.samples[figure].clone());
    match scenario.figures[figure].better {
        Better::Lower => peers.min_by(|a, b| of(a).total_cmp(&of(b))),
        Better::Higher => peers.max_by(|a, b| of(a).total_cmp(&of(b))),
    }
}

/// The median of the ratios round by round; nothing where there is no such arm, or one of both is too noisy, or the other's is 0.
fn ratio_to(scenario: &Measured, row: &Samples, arm: &str, figure: usize) -> String {
    let Some(other) = scenario.rows.iter().find(|row| row.arm == arm) else {
        return "–".into();
    };
    if is_noisy(scenario, row) || is_noisy(scenario, other) {
        return "noisy".into();
    }
    let ratio = median(paired(&row.samples[figure], &other.samples[figure]));
    match ratio.is_finite() {
        true => format!("{ratio:.2}"),
        false => "–".into(),
    }
}

fn skipped(scenarios: &[&Measured]) -> String {
    let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
    for scenario in scenarios {
        for skipped in &scenario.skipped {
            let line = format!("{} ({})", skipped.arm, skipped.why);
            match lines.iter_mut().find(|(other, _)| *other == line) {
                Some((_, ids)) => ids.push(&scenario.id),
                None => lines.push((line, vec![&scenario.id])),
            }
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let said = lines.iter().map(|(line, ids)| match ids.len() == scenarios.len() {
        true => line.clone(),
        false => format!("{line} in {}", ids.join(", ")),
    });
    format!("\nNot measured: {}.\n", said.collect::<Vec<_>>().join("; "))
}

pub(super) fn title(figure: &Quantity) -> String {
    match figure.unit.is_empty() {
        true => figure.name.clone(),
        false => format!("{}, {}", figure.name, figure.unit),
    }
}

pub(super) fn median_and_spread(samples: &[f64], decimals: usize) -> String {
    let (low, high) = spread(samples);
    let middle = median(samples.to_vec());
    match samples.len() {
        1 => format!("{middle:.decimals$}"),
        _ => format!("{middle:.decimals$} ({low:.decimals$}–{high:.decimals$})"),
    }
}

fn name_in_table(arm: &str, role: Role) -> String {
    match role {
        Role::Ours => format!("**{arm}**"),
        Role::Direct | Role::Peer => arm.into(),
    }
}

pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(head) + &format!("|{}\n", "---|".repeat(head.len()));
    for row in rows {
        text += &line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::environment::Environment;
    use super::super::json::Skipped;
    use super::super::tests::scenario;
    use super::*;

    const CPU: (&str, Better) = ("CPU", Better::Lower);

    fn results() -> Results {
        let rows: &[(&str, Role, &[&[f64]])] = &[
            ("direct", Role::Direct, &[&[0.0, 0.0, 0.0]]),
            ("tokio 8 KiB", Role::Peer, &[&[4.0, 4.0, 5.0]]),
            ("splice", Role::Peer, &[&[1.0, 1.0, 1.1]]),
            ("spliceway", Role::Ours, &[&[1.1, 1.0, 1.2]]),
            ("wild", Role::Peer, &[&[2.0, 3.0, 3.1]]),
        ];
        let mut results = Results::new(Environment::default());
        results.put(scenario("bulk-1", &[CPU], rows));
        results.put(scenario("bulk-8", &[CPU], rows));
        results.put_apart(super::super::apart::tests::apart());
        results
    }

    #[test]
    fn what_is_outside_the_markers_stays_byte_for_byte() {
        let document = "# Head\r\n\n a `<!-- generated: bulk -->` in prose\n<!-- generated: bulk -->\nold\n<!-- end -->\ntail  \nwithout a line's end";
        let written = fill_in(document, &results()).expect("blocks end");
        let (before, after) = document.split_once("old\n").expect("there");
        assert!(written.starts_with(before), "{written}");
        assert!(written.ends_with(after), "{written}");
        assert!(!written.contains("old\n"), "{written}");
        assert_eq!(fill_in(&written, &results()), Ok(written.clone()), "again");
    }

    #[test]
    fn a_block_that_stands_for_nothing_stays() {
        let document = "<!-- generated: churn -->\nold\n<!-- end -->\n";
        assert_eq!(fill_in(document, &results()).as_deref(), Ok(document));
    }

    #[test]
    fn a_block_without_an_end_is_an_error() {
        for document in [
            "<!-- generated: bulk -->\ntext\n",
            "<!-- generated: bulk -->\n<!-- generated: rr -->\n<!-- end -->\n",
        ] {
            assert!(fill_in(document, &results()).is_err(), "{document}");
        }
    }

    #[test]
    fn a_cell_has_median_spread_and_ratios_to_tokio_and_to_the_best_peer() {
        let results = results();
        let of = |arm: &str| cell(&results.scenarios[0], arm, 0);
        assert_eq!(of("spliceway"), "1.10 (1.00–1.20)<br>0.25 · 1.09");
        assert_eq!(of("splice"), "1.00 (1.00–1.10)<br>0.25 · 1.00");
        assert_eq!(of("direct"), "–");
        assert_eq!(of("not there"), "–");
    }

    #[test]
    fn an_arm_whose_rounds_differ_by_more_than_half_is_not_judged() {
        let results = results();
        assert_eq!(
            cell(&results.scenarios[0], "wild", 0),
            "3.00 (2.00–3.10)<br>too noisy to judge"
        );
    }

    #[test]
    fn scenarios_of_a_kind_share_a_table_with_what_tells_them_apart_as_heads() {
        let text = block("bulk", &results()).expect("measured");
        assert!(text.starts_with("**the scenario**: median of 1 rounds"), "{text}");
        assert!(text.contains("| CPU, units | bulk-1 | bulk-8 |\n"), "{text}");
        assert!(text.contains("| **spliceway** | 1.10"), "{text}");
    }

    #[test]
    fn what_was_skipped_is_said_with_its_reason_and_where() {
        let mut results = results();
        for (index, arm, why) in [
            (0, "nginx", "not installed"),
            (1, "nginx", "not installed"),
            (1, "go", "it failed"),
        ] {
            results.scenarios[index].skipped.push(Skipped {
                arm: arm.into(),
                why: why.into(),
            });
        }
        let text = block("bulk", &results).expect("measured");
        assert!(
            text.ends_with("\nNot measured: nginx (not installed); go (it failed) in bulk-8.\n"),
            "{text}"
        );
    }

    #[test]
    fn the_blocks_of_an_empty_document_show_everything() {
        let document = empty_document(&results());
        assert!(unmentioned(&document, &results()).is_empty());
        assert_eq!(unmentioned("# Nothing\n", &results()), ["bulk", "pool"]);
        let written = fill_in(&document, &results()).expect("blocks end");
        for expected in [
            "| bulk-8 | CPU, units | 1.10 (1.00–1.20) | 0.25 | 1.09 | splice |",
            "| **spliceway** | 1.10 |",
            "<!-- generated: pool -->\n**a thing and another**",
        ] {
            assert!(written.contains(expected), "{expected} in {written}");
        }
    }
}
