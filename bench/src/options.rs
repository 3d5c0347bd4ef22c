//! What the options of a relay cost, against `copy_bidirectional`. What is looked for is smaller than what a machine drifts by in
//! a minute: the rounds are short, each begins with another arm, and every other one goes backwards; and one arm is there twice,
//! as whatever difference is seen between those two is the machine's.

use std::io;

use crate::arms::Arm;
use crate::machine;
use crate::report::{self, Row};
use crate::scenario::Scenario;
use crate::scenarios::bulk::{Bulk, GIB};
use crate::scenarios::rr::RequestResponse;

const ARMS: [(&str, Arm); 7] = [
    ("copy_bidirectional", Arm::Spliceway),
    ("the same again", Arm::Spliceway),
    ("Relay", Arm::Relay),
    ("Relay, stats at 10 Hz", Arm::Stats),
    ("Relay, timeouts", Arm::Timeouts),
    ("Relay, huge rate limit", Arm::Rate),
    ("Relay, stats+timeouts+cancel", Arm::Everything),
];

const CONNECTIONS: usize = 64;
const SIZE: usize = 64;

pub(crate) fn run(bytes: u64, trips: u64, rounds: usize) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    machine::pin_to(machine::LOAD_CORE)?;
    let gib = bytes as f64 / GIB;
    let bulk = Bulk { flows: 1, bytes };
    report::heading(&format!("options, bulk, 1 flow, {gib:.1} GiB"), rounds, &conditions);
    let rows = interleave(rounds, |arm| Ok(bulk.measure(arm)?[0]))?;
    report::print_small_differences(("CPU of the relay, s/GiB", 4), &rows);

    let scenario = format!("options, rr, {SIZE} bytes × {CONNECTIONS} connections, {trips} trips");
    report::heading(&scenario, rounds, &conditions);
    let rr = RequestResponse {
        connections: CONNECTIONS,
        size: SIZE,
        trips,
    };
    let rows = interleave(rounds, |arm| Ok(rr.measure(arm)?[0]))?;
    report::print_small_differences(("CPU of the relay, µs/trip", 3), &rows);
    Ok(())
}

fn interleave(rounds: usize, measure: impl Fn(Arm) -> io::Result<f64>) -> io::Result<Vec<Row>> {
    let mut rows = ARMS.map(|(name, _)| Row {
        name: name.into(),
        figures: vec![Vec::with_capacity(rounds)],
    });
    // The first relay of a run finds caches and clock speed as the run before left them.
    measure(ARMS[0].1)?;
    for round in 0..rounds {
        for turn in 0..ARMS.len() {
            let index = place(round, turn);
            rows[index].figures[0].push(measure(ARMS[index].1)?);
        }
    }
    Ok(rows.into())
}

/// Which arm's turn it is: round after round another one begins, and every other round goes backwards.
fn place(round: usize, turn: usize) -> usize {
    let turn = if round.is_multiple_of(2) {
        turn
    } else {
        ARMS.len() - 1 - turn
    };
    (round / 2 + turn) % ARMS.len()
}
