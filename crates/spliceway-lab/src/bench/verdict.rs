//! Whether TLS in the kernel pays on this machine, in words.

use super::figures::{Row, Verdict};
use super::measurement::Kind;

/// Returns a sentence for each measurement with TLS.
pub(super) fn sentences(rows: &[Row], subject: &str) -> Vec<String> {
    let find = |kind, figure| {
        let mut rows = rows.iter().filter(|row| row.subject == subject);
        rows.find(|row| row.measurement == kind && row.figure == figure)
    };
    let bulk = [Kind::Encrypt, Kind::Decrypt]
        .into_iter()
        .filter_map(|kind| Some(of_bulk(find(kind, "rate")?, find(kind, "cpu")?)));
    let handshakes = find(Kind::Handshakes, "cpu").map(of_handshakes);
    bulk.chain(handshakes).collect()
}

/// The part of a core above which a relay limits the rate itself.
const WHOLE_CORE: f64 = 0.9;

fn of_bulk(rate: &Row, cpu: &Row) -> String {
    let value = |row: &Row, name: &str| {
        let value = row.values.iter().find(|value| value.contender == name)?;
        Some(value.estimate?.value)
    };
    // GiB per second, times seconds per GiB.
    let uses_core = |name: &str| {
        value(rate, name)
            .zip(value(cpu, name))
            .map(|(rate, cpu)| rate * cpu > WHOLE_CORE)
    };
    let is_limit = [&rate.subject, &rate.reference].map(|name| uses_core(name) == Some(true));
    let (advice, limit) = match is_limit {
        [true, true] => (advice(&[rate.verdict, cpu.verdict]), ""),
        _ => (
            advice(&[cpu.verdict]),
            " A relay did not use its whole core, so the clients limit the rate, and it does not count.",
        ),
    };
    let (title, rate, cpu) = (&rate.title, ratio(rate), ratio(cpu));
    format!(
        "{title}. Kernel TLS has {rate} times the rate of rustls, and {cpu} times its CPU time per GiB: {advice}.{limit}"
    )
}

/// Returns what follows from the verdicts on the rate and on the CPU time.
fn advice(verdicts: &[Verdict]) -> &'static str {
    let has = |verdict| verdicts.contains(&verdict);
    match (has(Verdict::Better), has(Verdict::Worse)) {
        (true, false) if has(Verdict::TooNoisy) || has(Verdict::NotMeasured) => {
            "one is better, and the other is not known, so leave `--ktls` off"
        }
        (true, false) => "`--ktls auto` helps such sessions here",
        (false, true) => "it is worse here, so leave `--ktls` off",
        (true, true) => "one is better and one is worse, so it depends on what you need",
        (false, false) if has(Verdict::TooNoisy) => "this machine is too noisy to tell",
        (false, false) if has(Verdict::NotMeasured) => "a figure could not be measured",
        (false, false) => "no difference was found, so leave `--ktls` off",
    }
}

fn of_handshakes(cpu: &Row) -> String {
    let advice = match cpu.verdict {
        Verdict::Better => "a low `--ktls-after` may help here",
        Verdict::Worse => "leave `--ktls-after` as it is",
        Verdict::NoDifference => "no difference was found",
        Verdict::TooNoisy => "this machine is too noisy to tell",
        Verdict::NotMeasured => "it could not be measured",
    };
    let (title, ratio) = (&cpu.title, ratio(cpu));
    format!(
        "{title}. With its TLS in the kernel after the handshake, a connection takes {ratio} times the CPU time: {advice}."
    )
}

/// Returns a ratio with its interval.
fn ratio(row: &Row) -> String {
    row.ratio.map_or("–".to_owned(), |ratio| ratio.show(2))
}

#[cfg(test)]
mod tests {
    use super::Verdict::{Better, NoDifference, NotMeasured, TooNoisy, Worse};
    use super::*;

    #[test]
    fn kernel_tls_is_advised_only_if_something_is_better_and_nothing_worse() {
        for (verdicts, expected) in [
            ([Better, NoDifference], "helps such sessions"),
            ([TooNoisy, Better], "not known"),
            ([NoDifference, Worse], "leave `--ktls` off"),
            ([NoDifference, NoDifference], "leave `--ktls` off"),
            ([Worse, Better], "depends"),
            ([NoDifference, TooNoisy], "too noisy"),
            ([NotMeasured, NoDifference], "could not be measured"),
        ] {
            let advice = advice(&verdicts);
            assert!(advice.contains(expected), "{verdicts:?}: {advice}");
        }
    }
}
