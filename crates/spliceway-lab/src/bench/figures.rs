//! The rows of the result: a figure for each contender, and a ratio with what is certain about it.

use std::cmp::Ordering;

use serde::Serialize;
use spliceway_load::{Estimate, bootstrap, lower_half, typical, upper_half};

use super::measurement::{Figure, Kind};
use super::run::{DIRECT, Field, Measured, Run};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// The whole interval is on the better side of 1.
    Better,
    Worse,
    /// The interval contains 1.
    NoDifference,
    /// Two runs of the same relay differ too much.
    TooNoisy,
    NotMeasured,
}

/// One figure of all contenders.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) measurement: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) size: Option<usize>,
    /// The table in the text, and the row in it.
    #[serde(skip)]
    pub(super) title: String,
    pub(super) label: String,
    pub(super) figure: &'static str,
    pub(super) unit: &'static str,
    pub(super) values: Vec<Value>,
    pub(super) subject: String,
    pub(super) reference: String,
    /// The subject relative to the reference.
    pub(super) ratio: Option<Estimate>,
    /// The A/A control: the second run of a contender relative to the first.
    pub(super) control: Option<f64>,
    pub(super) verdict: Verdict,
    /// The best contender beside the subject, if it is not the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) best_alternative: Option<Alternative>,
}

/// A relay that could be used instead of the subject.
#[derive(Debug, Serialize)]
pub(super) struct Alternative {
    pub(super) contender: String,
    /// The subject relative to it.
    pub(super) ratio: Estimate,
    pub(super) verdict: Verdict,
}

#[derive(Debug, Serialize)]
pub(super) struct Value {
    pub(super) contender: String,
    /// `None` if the figure does not exist for the contender.
    #[serde(flatten)]
    pub(super) estimate: Option<Estimate>,
}

/// What a row compares.
pub(super) struct Compared<'a> {
    pub(super) names: Vec<&'a str>,
    pub(super) reference: usize,
    pub(super) subject: usize,
    /// The second run of a contender, and that contender.
    pub(super) control: usize,
    pub(super) repeated: usize,
}

impl Compared<'_> {
    /// Returns the best relay beside the subject, by these values of all contenders in their order.
    fn best_alternative(&self, values: &[Value], figure: Figure) -> Option<usize> {
        let value = |at: usize| Some(values.get(at)?.estimate?.value);
        let is_relay = |at: &usize| *at != self.subject && self.names[*at] != DIRECT && value(*at).is_some();
        let mut relays: Vec<usize> = (0..values.len()).filter(is_relay).collect();
        relays.sort_by(|one, other| {
            let (one, other) = (value(*one), value(*other));
            let order = one.partial_cmp(&other).unwrap_or(Ordering::Equal);
            if figure.is_more_better() {
                order.reverse()
            } else {
                order
            }
        });
        relays.first().copied()
    }
}

/// Returns the rows of a measurement. With TLS, each contender is compared with the reference.
pub(super) fn rows(field: &Field, measured: &Measured) -> Vec<Row> {
    let first = if field.is_tls {
        field.reference + 1
    } else {
        field.subject()
    };
    (first..=field.subject())
        .flat_map(|subject| rows_of(subject, field, measured))
        .collect()
}

fn rows_of(subject: usize, field: &Field, measured: &Measured) -> Vec<Row> {
    let compared = Compared {
        names: field.contenders.iter().map(|one| one.name.as_str()).collect(),
        reference: field.reference,
        subject,
        control: field.control(),
        repeated: field.subject(),
    };
    let measurement = &measured.measurement;
    let row = |figure: &Figure| {
        let of = |contender: usize, rounds: &[usize]| over_rounds(*figure, &measured.runs[contender], rounds);
        let rounds = |contender: usize| measured.runs[contender].len();
        let titles = measurement.titles(*figure);
        Row::new(
            (measurement.kind, measurement.size),
            titles,
            *figure,
            &compared,
            rounds,
            of,
        )
    };
    measurement.figures.iter().map(row).collect()
}

/// Returns a figure over these rounds of one contender.
fn over_rounds(figure: Figure, runs: &[Run], rounds: &[usize]) -> Option<f64> {
    let gib = |run: &Run| run.done.bytes as f64 / f64::from(1 << 30);
    let each = |of: &dyn Fn(&Run) -> Option<f64>| rounds.iter().map(|at| of(&runs[*at])).collect::<Option<Vec<f64>>>();
    match figure {
        Figure::Rate => upper_half(each(&|run| Some(gib(run) / run.wall))?.into_iter()),
        Figure::CpuPerGib => lower_half(each(&|run| Some(run.cpu? / gib(run)))?.into_iter()),
        Figure::CpuEach => {
            let cost = |run: &Run| Some(run.cpu? * 1e6 / run.done.completed as f64);
            lower_half(each(&cost)?.into_iter())
        }
        Figure::Latency(part) => typical(rounds.iter().map(|at| &runs[*at].done.exchanges), part),
        Figure::Pipe => None,
    }
}

impl Row {
    /// `of` returns the figure of a contender over some of its rounds.
    pub(super) fn new(
        (measurement, size): (Kind, Option<usize>),
        (title, label): (String, String),
        figure: Figure,
        compared: &Compared<'_>,
        rounds: impl Fn(usize) -> usize,
        of: impl Fn(usize, &[usize]) -> Option<f64>,
    ) -> Self {
        let finite = |value: f64| value.is_finite().then_some(value);
        let ratio = |own: usize, to: usize| {
            bootstrap(rounds(own).min(rounds(to)), |some| {
                finite(of(own, some)? / of(to, some)?)
            })
        };
        // The control is measured in every run of this command, and the host puts it in no list.
        let shown = compared
            .names
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != compared.control);
        let values = shown.map(|(at, name)| Value {
            contender: (*name).to_owned(),
            estimate: bootstrap(rounds(at), |some| finite(of(at, some)?)),
        });
        let control = ratio(compared.control, compared.repeated).map(|ratio| ratio.value);
        let against = |to: usize| {
            let samples = rounds(compared.subject).min(rounds(to));
            let ratio = ratio(compared.subject, to).zip(control);
            ratio.map(|(ratio, control)| ratio.for_rounds(samples).widened_by(control))
        };
        let values: Vec<_> = values.collect();
        let best = compared.best_alternative(&values, figure);
        let best = best.filter(|best| *best != compared.reference);
        let best_alternative = best.and_then(|best| {
            let ratio = against(best)?;
            Some(Alternative {
                contender: compared.names[best].to_owned(),
                verdict: verdict(Some(ratio), control, figure),
                ratio,
            })
        });
        let ratio = against(compared.reference);
        Self {
            measurement,
            size,
            title,
            label,
            figure: figure.name(),
            unit: figure.unit(),
            subject: compared.names[compared.subject].to_owned(),
            reference: compared.names[compared.reference].to_owned(),
            values,
            best_alternative,
            verdict: verdict(ratio, control, figure),
            ratio,
            control,
        }
    }

    pub(super) fn value(&self, contender: &str) -> Option<f64> {
        let value = self.values.iter().find(|value| value.contender == contender);
        Some(value?.estimate?.value)
    }
}

fn verdict(ratio: Option<Estimate>, control: Option<f64>, figure: Figure) -> Verdict {
    let (Some(ratio), Some(control)) = (ratio, control) else {
        return Verdict::NotMeasured;
    };
    let is_more_better = figure.is_more_better();
    match ratio {
        _ if control.max(1.0 / control) > 1.0 + figure.tolerance() => Verdict::TooNoisy,
        Estimate { low, .. } if low > 1.0 => [Verdict::Worse, Verdict::Better][usize::from(is_more_better)],
        Estimate { high, .. } if high < 1.0 => [Verdict::Better, Verdict::Worse][usize::from(is_more_better)],
        _ => Verdict::NoDifference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(figure: Figure, reference: f64, subject: f64, control: f64) -> Row {
        let compared = Compared {
            names: vec!["copy", "splice", "splice again"],
            reference: 0,
            subject: 1,
            control: 2,
            repeated: 1,
        };
        let values = [reference, subject, control];
        let titles = (String::new(), String::new());
        Row::new(
            (Kind::Bulk, None),
            titles,
            figure,
            &compared,
            |_| 4,
            |contender, _| Some(values[contender]),
        )
    }

    #[test]
    fn a_ratio_is_judged_by_its_interval_and_by_the_control() {
        assert_eq!(row(Figure::Rate, 1.0, 2.0, 2.0).verdict, Verdict::Better);
        assert_eq!(row(Figure::CpuPerGib, 1.0, 2.0, 2.0).verdict, Verdict::Worse);
        assert_eq!(row(Figure::CpuPerGib, 1.0, 0.5, 0.5).verdict, Verdict::Better);
        assert_eq!(row(Figure::CpuPerGib, 1.0, 0.95, 0.9).verdict, Verdict::NoDifference);
        assert_eq!(row(Figure::CpuPerGib, 1.0, 0.5, 0.6).verdict, Verdict::TooNoisy);
        assert_eq!(row(Figure::CpuPerGib, 0.0, 0.5, 0.5).verdict, Verdict::NotMeasured);
    }

    #[test]
    fn the_interval_contains_the_difference_of_the_control() {
        let ratio = row(Figure::CpuPerGib, 1.0, 0.50, 0.55).ratio.unwrap();
        assert!((ratio.value - 0.5).abs() < 1e-9);
        assert!(
            (ratio.low - 0.5 / 1.1).abs() < 1e-9 && (ratio.high - 0.55).abs() < 1e-9,
            "{ratio:?}"
        );
    }

    #[test]
    fn the_best_relay_beside_the_subject_is_named_unless_it_is_the_reference() {
        let row = |figure, values: [f64; 5]| {
            let compared = Compared {
                names: vec![DIRECT, "tokio", "tuned", "splice", "splice again"],
                reference: 1,
                subject: 3,
                control: 4,
                repeated: 3,
            };
            let of = |contender: usize, _: &[usize]| Some(values[contender]);
            Row::new(
                (Kind::Bulk, None),
                (String::new(), String::new()),
                figure,
                &compared,
                |_| 4,
                of,
            )
        };
        let best = |row: Row| {
            let best = row.best_alternative?;
            Some((best.contender, best.verdict, (best.ratio.value * 100.0).round()))
        };
        let tuned = "tuned".to_owned();
        let cheaper = row(Figure::CpuPerGib, [0.1, 4.0, 2.0, 1.0, 1.0]);
        assert_eq!(best(cheaper), Some((tuned.clone(), Verdict::Better, 50.0)));
        let faster = row(Figure::Rate, [9.0, 1.0, 4.0, 2.0, 2.0]);
        assert_eq!(best(faster), Some((tuned, Verdict::Worse, 50.0)));
        assert_eq!(best(row(Figure::CpuPerGib, [0.1, 2.0, 4.0, 1.0, 1.0])), None);
    }

    #[test]
    fn the_control_is_not_a_contender_of_its_own() {
        let row = row(Figure::Rate, 1.0, 2.0, 2.0);
        assert_eq!(
            (row.values.len(), row.value("splice"), row.value("splice again")),
            (2, Some(2.0), None)
        );
    }
}
