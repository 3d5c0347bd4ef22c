//! Programs that take the address to listen on and the one to connect to, one against the other.

use std::io;
use std::path::PathBuf;

use crate::machine;
use crate::report::{self, Row};
use crate::scenario::Scenario;
use crate::scenarios::bulk::Bulk;

pub(crate) fn run(programs: &[PathBuf], bytes: u64, rounds: usize) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    let bulk = Bulk { flows: 1, bytes };
    report::heading(&format!("programs, {}", bulk.title()), rounds, &conditions);
    machine::pin_to(machine::LOAD_CORE)?;
    let row = |program: &PathBuf| Row {
        name: program.display().to_string(),
        figures: vec![Vec::new(); 2],
    };
    let mut rows: Vec<Row> = programs.iter().map(row).collect();
    for _ in 0..rounds {
        for (program, row) in programs.iter().zip(&mut rows) {
            for (samples, figure) in row.figures.iter_mut().zip(bulk.measure_program(program)?) {
                samples.push(figure);
            }
        }
    }
    report::print(&[("CPU of the relay, s/GiB", 3), ("GiB/s", 2)], &rows);
    Ok(())
}
