//! Regret: by how much the best of the others beats an arm where it is beaten most.
//!
//! A relay is chosen by its worst day. So of every scenario and figure the medians are compared with the best other's, and the largest
//! factor is what whoever chose this arm may come to regret. Of so many comparisons, each with the luckiest of the others, the largest is
//! luck in part: so beside it stands the largest factor that was reached in every round.

use super::json::{Measured, Quantity, Results, Samples};
use super::{median, median_interval};
use crate::arms::Role;
use crate::scenario::Better;

/// What a figure is about. Others than these count for nothing here: the other percentiles move with p99.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Cpu,
    Rate,
    P99,
    Memory,
    Descriptors,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [Self::Cpu, Self::Rate, Self::P99, Self::Memory, Self::Descriptors];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Rate => "rate",
            Self::P99 => "p99",
            Self::Memory => "memory",
            Self::Descriptors => "descriptors",
        }
    }

    /// By the words of its name ("chatty p99", "bulk rate"), and memory by its unit.
    pub(crate) fn of(figure: &Quantity) -> Option<Self> {
        let has = |names: &[&str]| figure.name.split([' ', ',']).any(|word| names.contains(&word));
        if has(&["CPU"]) {
            Some(Self::Cpu)
        } else if has(&["rate"]) || figure.unit.ends_with("/s") {
            Some(Self::Rate)
        } else if has(&["p99"]) {
            Some(Self::P99)
        } else if has(&["descriptors", "held"]) {
            Some(Self::Descriptors)
        } else if ["B", "KiB", "MiB"].contains(&figure.unit.split(['/', ' ']).next()?) {
            Some(Self::Memory)
        } else {
            None
        }
    }
}

/// Highest to lowest of the interval that holds the median of an arm's CPU time, from which on a scenario says nothing about it. Of five rounds
/// that is their highest to their lowest, at 15 times of 16: undisturbed ones stay below 1.4 at small messages and 1.2 at bulk, and anything
/// else on the machine makes them 2 and more. More rounds tell more: what two of 31 took is of no weight.
const TOO_NOISY: f64 = 1.5;

/// Where an arm is beaten by how much, and by whom.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Beaten {
    pub(crate) factor: f64,
    pub(crate) kind: Kind,
    pub(crate) scenario: String,
    pub(crate) by: String,
}

/// The regret of one arm.
#[derive(Debug)]
pub(crate) struct Regret {
    pub(crate) arm: String,
    pub(crate) role: Role,
    /// In how many scenarios it was measured, and could be judged.
    pub(crate) scenarios: usize,
    /// By kind of figure, as in [`Kind::ALL`]: where it is worst, or nothing if nobody is better or there is no such figure.
    pub(crate) by_kind: [Option<Beaten>; 5],
    /// Which kinds were compared at all.
    pub(crate) compared: [bool; 5],
    /// Where it is worst by the round in which it is beaten least.
    pub(crate) in_every_round: Option<Beaten>,
}

impl Regret {
    /// The worst of all.
    pub(crate) fn whole(&self) -> Option<&Beaten> {
        let worst = self.by_kind.iter().flatten();
        worst.max_by(|a, b| a.factor.total_cmp(&b.factor))
    }

    /// 1 where nobody is better.
    pub(crate) fn factor(&self) -> f64 {
        self.whole().map_or(1.0, |worst| worst.factor)
    }
}

/// Of every arm but `direct`, the least first.
pub(crate) fn of_all(results: &Results) -> Vec<Regret> {
    let mut all: Vec<Regret> = Vec::new();
    let rows = results.scenarios.iter().flat_map(|scenario| &scenario.rows);
    for row in rows.filter(|row| row.role != Role::Direct) {
        if !all.iter().any(|regret| regret.arm == row.arm) {
            all.push(of(&row.arm, row.role, &results.scenarios));
        }
    }
    all.sort_by(|a, b| a.factor().total_cmp(&b.factor()));
    all
}

/// Whether the median of its CPU time is known too badly to judge by.
pub(crate) fn is_noisy(scenario: &Measured, row: &Samples) -> bool {
    let is_cpu = |figure| Kind::of(figure) == Some(Kind::Cpu);
    scenario.figures.iter().position(is_cpu).is_some_and(|index| {
        let (low, high) = median_interval(&row.samples[index]);
        high > low * TOO_NOISY
    })
}

fn of(arm: &str, role: Role, scenarios: &[Measured]) -> Regret {
    let mut regret = Regret {
        arm: arm.into(),
        role,
        scenarios: 0,
        by_kind: Default::default(),
        compared: [false; 5],
        in_every_round: None,
    };
    for scenario in scenarios {
        if !scenario
            .rows
            .iter()
            .any(|row| row.arm == arm && !is_noisy(scenario, row))
        {
            continue;
        }
        regret.scenarios += 1;
        for (index, figure) in scenario.figures.iter().enumerate() {
            let Some(kind) = Kind::of(figure) else { continue };
            let Some(beaten) = beaten_by(arm, role, scenario, (index, kind), of_medians) else {
                continue;
            };
            let place = kind as usize;
            regret.compared[place] = true;
            worse_of(&mut regret.by_kind[place], beaten);
            if let Some(beaten) = beaten_by(arm, role, scenario, (index, kind), in_every_round) {
                worse_of(&mut regret.in_every_round, beaten);
            }
        }
    }
    regret
}

/// Keeps the larger factor, if it is one.
fn worse_of(worst: &mut Option<Beaten>, beaten: Beaten) {
    if beaten.factor > worst.as_ref().map_or(1.0, |worst| worst.factor) {
        *worst = Some(beaten);
    }
}

/// How many times better than `ours` an arm's samples are.
type Judge = fn(ours: &[f64], other: &[f64], Better) -> Option<f64>;

fn of_medians(ours: &[f64], other: &[f64], better: Better) -> Option<f64> {
    factor(median(ours.to_vec()), median(other.to_vec()), better)
}

fn in_every_round(ours: &[f64], other: &[f64], better: Better) -> Option<f64> {
    if ours.len() != other.len() {
        return None;
    }
    let factors = ours
        .iter()
        .zip(other)
        .map(|(ours, other)| factor(*ours, *other, better));
    let factors: Option<Vec<f64>> = factors.collect();
    factors?.into_iter().min_by(f64::total_cmp)
}

/// How many times better the best other arm is, and which that is. Less than 1 if none is.
fn beaten_by(arm: &str, role: Role, scenario: &Measured, (index, kind): (usize, Kind), judge: Judge) -> Option<Beaten> {
    let better = scenario.figures[index].better;
    let ours = scenario.rows.iter().find(|row| row.arm == arm)?;
    // Our own arms are no peers of each other.
    let is_other = |other: Role| other != Role::Direct && !(role == Role::Ours && other == Role::Ours);
    let others = scenario
        .rows
        .iter()
        .filter(|row| row.arm != arm && is_other(row.role) && !is_noisy(scenario, row));
    others
        .filter_map(|row| {
            Some(Beaten {
                factor: judge(&ours.samples[index], &row.samples[index], better)?,
                kind,
                scenario: scenario.id.clone(),
                by: row.arm.clone(),
            })
        })
        .max_by(|a, b| a.factor.total_cmp(&b.factor))
}

/// How many times better `other` is than `ours`. Where one is none at all (no pipe), so many times are no number: both are equal then, or
/// the one that has none is not compared, as what the other has is in a figure of its own (descriptors).
fn factor(ours: f64, other: f64, better: Better) -> Option<f64> {
    let (more, less) = match better {
        Better::Lower => (ours, other),
        Better::Higher => (other, ours),
    };
    match (more == 0.0, less == 0.0) {
        (true, true) => Some(1.0),
        (false, true) => None,
        _ => Some(more / less),
    }
}

#[cfg(test)]
mod tests {
    use super::super::environment::Environment;
    use super::super::tests::scenario;
    use super::*;

    fn results(scenarios: Vec<Measured>) -> Results {
        Results {
            scenarios,
            ..Results::new(Environment::default())
        }
    }

    fn find<'r>(all: &'r [Regret], arm: &str) -> &'r Regret {
        all.iter().find(|regret| regret.arm == arm).expect("measured")
    }

    /// CPU and rate of `direct`, of two of ours and of two peers, the median of three rounds each.
    fn two_figures() -> Results {
        results(vec![scenario(
            "bulk-1",
            &[("CPU", Better::Lower), ("rate", Better::Higher)],
            &[
                ("direct", Role::Direct, &[&[0.0, 0.0, 0.0], &[90.0, 90.0, 90.0]]),
                ("spliceway", Role::Ours, &[&[1.2, 1.5, 1.1], &[5.0, 5.0, 5.0]]),
                ("Relay", Role::Ours, &[&[0.6, 0.6, 0.6], &[9.0, 9.0, 9.0]]),
                ("tokio", Role::Peer, &[&[4.0, 4.0, 4.0], &[1.0, 1.0, 1.0]]),
                ("splice", Role::Peer, &[&[1.0, 1.0, 1.0], &[4.0, 4.0, 4.0]]),
            ],
        )])
    }

    #[test]
    fn the_largest_factor_counts_and_names_where_and_who() {
        let all = of_all(&two_figures());
        let tokio = find(&all, "tokio").whole().expect("beaten");
        let expected = Beaten {
            factor: 9.0,
            kind: Kind::Rate,
            scenario: "bulk-1".into(),
            by: "Relay".into(),
        };
        assert_eq!(*tokio, expected);
        let cpu = find(&all, "tokio").by_kind[Kind::Cpu as usize]
            .as_ref()
            .expect("beaten");
        assert_eq!((cpu.by.as_str(), (cpu.factor * 100.0).round()), ("Relay", 667.0));
    }

    #[test]
    fn ours_are_compared_with_peers_alone_by_medians() {
        let all = of_all(&two_figures());
        let ours = find(&all, "spliceway");
        // 1.2 against the 1.0 of a peer, and not against the 0.6 of another of ours nor the 0 of none at all.
        assert_eq!(ours.factor(), 1.2);
        assert_eq!(ours.by_kind[Kind::Rate as usize], None, "nobody is better");
        assert!(ours.compared[Kind::Rate as usize]);
        assert!(!ours.compared[Kind::P99 as usize]);
    }

    #[test]
    fn a_factor_in_every_round_is_that_of_the_round_in_which_it_was_least() {
        let all = of_all(&two_figures());
        let by = |arm| {
            let worst = find(&all, arm).in_every_round.as_ref();
            worst.map(|worst| (worst.factor, worst.kind, worst.by.as_str()))
        };
        assert_eq!(by("spliceway"), Some((1.1, Kind::Cpu, "splice")), "the third");
        assert_eq!(by("Relay"), None);
        assert_eq!(by("tokio"), Some((9.0, Kind::Rate, "Relay")));
        // The least and the greatest of both are of other rounds.
        let (ours, other) = ([2.0, 4.0, 3.0], [1.0, 2.5, 1.0]);
        assert_eq!(in_every_round(&ours, &other, Better::Lower), Some(1.6));
        assert_eq!(in_every_round(&ours, &other[1..], Better::Lower), None);
    }

    #[test]
    fn rounds_too_noisy_to_judge_an_arm_by_count_for_nobody() {
        let (quiet, noisy): ([f64; 3], [f64; 3]) = ([1.0, 1.2, 1.4], [0.5, 0.6, 0.8]);
        let all = of_all(&results(vec![scenario(
            "bulk-1",
            &[("CPU", Better::Lower)],
            &[("quiet", Role::Peer, &[&quiet]), ("noisy", Role::Peer, &[&noisy])],
        )]));
        assert_eq!((find(&all, "quiet").factor(), find(&all, "quiet").scenarios), (1.0, 1));
        assert_eq!((find(&all, "noisy").factor(), find(&all, "noisy").scenarios), (1.0, 0));
    }

    #[test]
    fn of_many_rounds_few_that_differ_hide_nothing() {
        let mut rounds = [1.0; 31];
        rounds[..2].fill(9.0);
        let judged = |rounds: &[f64]| {
            let figures = [("CPU", Better::Lower)];
            let all = of_all(&results(vec![scenario(
                "sweep-8192",
                &figures,
                &[("ours", Role::Ours, &[rounds])],
            )]));
            find(&all, "ours").scenarios == 1
        };
        assert!(judged(&rounds));
        assert!(!judged(&rounds[..5]), "where they are two of five");
        rounds[..12].fill(9.0);
        assert!(!judged(&rounds), "where the median may be either");
    }

    #[test]
    fn an_arm_that_nobody_beats_has_a_regret_of_one_and_comes_first() {
        let all = of_all(&two_figures());
        assert_eq!((all[0].arm.as_str(), all[0].factor()), ("Relay", 1.0));
        assert!(!all.iter().any(|regret| regret.arm == "direct"));
    }

    #[test]
    fn none_against_none_is_equal_and_some_against_none_counts_as_descriptors_alone() {
        let idle = scenario(
            "idle-10000",
            &[("descriptors", Better::Lower), ("descriptors of pipes", Better::Lower)],
            &[
                ("ours", Role::Ours, &[&[2.0], &[0.0]]),
                ("copy", Role::Peer, &[&[2.0], &[0.0]]),
                ("splice", Role::Peer, &[&[6.0], &[2.0]]),
            ],
        );
        let all = of_all(&results(vec![idle]));
        assert_eq!(find(&all, "ours").factor(), 1.0);
        let splice = find(&all, "splice").whole().expect("beaten");
        assert_eq!((splice.kind, splice.factor), (Kind::Descriptors, 3.0));
    }

    #[test]
    fn scenarios_in_which_an_arm_was_not_measured_do_not_count() {
        let figures = [("CPU", Better::Lower)];
        let all = of_all(&results(vec![
            scenario(
                "a",
                &figures,
                &[("x", Role::Peer, &[&[1.0]]), ("y", Role::Peer, &[&[2.0]])],
            ),
            scenario("b", &figures, &[("y", Role::Peer, &[&[2.0]])]),
        ]));
        assert_eq!(find(&all, "x").scenarios, 1);
        assert_eq!(find(&all, "y").scenarios, 2);
        assert_eq!(find(&all, "y").factor(), 2.0);
    }

    #[test]
    fn figures_are_told_by_the_words_of_their_names_and_memory_by_its_unit() {
        let kind = |name: &str, unit: &str| {
            Kind::of(&Quantity {
                name: name.into(),
                unit: unit.into(),
                decimals: 0,
                better: Better::Lower,
            })
        };
        for (name, unit, expected) in [
            ("CPU", "s/GiB", Some(Kind::Cpu)),
            ("bulk rate", "GiB/s", Some(Kind::Rate)),
            ("chatty p99", "µs", Some(Kind::P99)),
            ("p99.9", "µs", None),
            ("p50", "µs", None),
            ("descriptors", "", Some(Kind::Descriptors)),
            ("held", "", Some(Kind::Descriptors)),
            // Their descriptors count already.
            ("pipes", "", None),
            ("bulk", "GiB/s", Some(Kind::Rate)),
            ("RSS", "KiB each", Some(Kind::Memory)),
            ("slab", "KiB/connection", Some(Kind::Memory)),
        ] {
            assert_eq!(kind(name, unit), expected, "{name}");
        }
    }
}
