//! One direction of bulk data through each relay. The load costs little of itself: `sendfile` from memory on one side, a
//! receive that throws away (`MSG_TRUNC`) on the other.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustix::net::{RecvFlags, recv};

use crate::arms::{Arm, Relay};
use crate::machine;
use crate::report::{self, Row};

pub(crate) const GIB: f64 = (1 << 30) as f64;
/// Bytes per call on either side.
const CHUNK: usize = 1 << 20;

pub(crate) fn run(flows: usize, bytes: u64, rounds: usize) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    report::heading(
        &format!("bulk, {flows} flows, {:.1} GiB", bytes as f64 / GIB),
        rounds,
        &conditions,
    );
    machine::pin_to(machine::LOAD_CORE)?;
    let mut rows: Vec<Row> = Vec::new();
    for round in 0..rounds {
        for (index, arm) in Arm::RELAYS.iter().enumerate() {
            let (cpu, rate) = measure(*arm, flows, bytes)?;
            if round == 0 {
                rows.push(Row {
                    name: arm.name().into(),
                    figures: vec![Vec::new(), Vec::new()],
                });
            }
            rows[index].figures[0].push(cpu);
            rows[index].figures[1].push(rate);
        }
    }
    report::print(&[("CPU of the relay, s/GiB", 3), ("GiB/s", 2)], &rows);
    Ok(())
}

/// Programs that take the address to listen on and the one to connect to, one against the other.
pub(crate) fn run_programs(programs: &[PathBuf], bytes: u64, rounds: usize) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    let scenario = format!("programs, bulk, 1 flow, {:.1} GiB", bytes as f64 / GIB);
    report::heading(&scenario, rounds, &conditions);
    machine::pin_to(machine::LOAD_CORE)?;
    let row = |program: &PathBuf| Row {
        name: program.display().to_string(),
        figures: vec![Vec::new(), Vec::new()],
    };
    let mut rows: Vec<Row> = programs.iter().map(row).collect();
    for _ in 0..rounds {
        for (program, row) in programs.iter().zip(&mut rows) {
            let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let relay = Relay::start_program(program, upstream.local_addr()?)?;
            let (cpu, rate) = carry(&relay, &row.name, &upstream, 1, bytes)?;
            row.figures[0].push(cpu);
            row.figures[1].push(rate);
        }
    }
    report::print(&[("CPU of the relay, s/GiB", 3), ("GiB/s", 2)], &rows);
    Ok(())
}

/// CPU seconds of the relay per GiB, and GiB per second.
pub(crate) fn measure(arm: Arm, flows: usize, bytes: u64) -> io::Result<(f64, f64)> {
    let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let relay = Relay::start(arm, upstream.local_addr()?)?;
    carry(&relay, arm.name(), &upstream, flows, bytes)
}

fn carry(relay: &Relay, name: &str, upstream: &TcpListener, flows: usize, bytes: u64) -> io::Result<(f64, f64)> {
    let each = bytes / flows as u64;
    let before = relay.cpu_time()?;
    let started = Instant::now();
    let received = thread::scope(|scope| -> io::Result<u64> {
        let receivers: Vec<_> = (0..flows)
            .map(|_| {
                let sender = scope.spawn(|| send(relay.address, each));
                let (socket, _) = upstream.accept()?;
                Ok((sender, scope.spawn(move || receive(&socket))))
            })
            .collect::<io::Result<_>>()?;
        let mut received = 0;
        for (sender, receiver) in receivers {
            sender.join().expect("a sender does not panic")?;
            received += receiver.join().expect("a receiver does not panic")?;
        }
        Ok(received)
    })?;
    let elapsed = started.elapsed().as_secs_f64();
    let cpu = (relay.cpu_time()? - before).as_secs_f64();
    if received != each * flows as u64 {
        return Err(io::Error::other(format!("{name}: {received} of {bytes} bytes arrived")));
    }
    let gib = received as f64 / GIB;
    Ok((cpu / gib, gib / elapsed))
}

fn send(relay: SocketAddr, bytes: u64) -> io::Result<()> {
    let socket = TcpStream::connect(relay)?;
    let memory = File::from(memfd_create("spliceway-bench", MemfdFlags::CLOEXEC)?);
    memory.set_len(CHUNK as u64)?;
    let mut left = bytes;
    while left > 0 {
        let mut offset = left % CHUNK as u64;
        if offset > 0 {
            offset = CHUNK as u64 - offset;
        }
        left -= sendfile(&socket, &memory, Some(&mut offset), CHUNK.min(left as usize))? as u64;
    }
    socket.shutdown(Shutdown::Write)
}

fn receive(socket: &TcpStream) -> io::Result<u64> {
    let mut nowhere = vec![0; CHUNK];
    let mut received = 0;
    loop {
        match recv(socket, &mut nowhere[..], RecvFlags::TRUNC)? {
            (_, 0) => return Ok(received),
            (_, bytes) => received += bytes as u64,
        }
    }
}
