//! Requests and responses of one size through each relay: the work where splicing loses unless the relay knows better.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::arms::{Arm, Relay};
use crate::machine;
use crate::report::{self, Row};

pub(crate) fn run(connections: usize, size: usize, trips: usize, rounds: usize) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    report::heading(
        &format!("rr, {size} bytes × {connections} connections, {trips} trips"),
        rounds,
        &conditions,
    );
    machine::pin_to(machine::LOAD_CORE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut rows: Vec<Row> = Vec::new();
    for round in 0..rounds {
        for (index, arm) in Arm::RELAYS.iter().enumerate() {
            let figures = runtime.block_on(measure(*arm, connections, size, trips / connections))?;
            if round == 0 {
                rows.push(Row {
                    name: arm.name().into(),
                    figures: vec![Vec::new(); figures.len()],
                });
            }
            for (samples, figure) in rows[index].figures.iter_mut().zip(figures) {
                samples.push(figure);
            }
        }
    }
    report::print(
        &[("CPU of the relay, µs/trip", 2), ("trips/s", 0), ("p99, µs", 0)],
        &rows,
    );
    Ok(())
}

/// CPU microseconds of the relay per round trip, round trips per second, and the 99th percentile of their time.
pub(crate) async fn measure(arm: Arm, connections: usize, size: usize, trips: usize) -> io::Result<[f64; 3]> {
    let upstream = TcpListener::bind("127.0.0.1:0").await?;
    let relay = Relay::start(arm, upstream.local_addr()?)?;
    let mut servers = JoinSet::new();
    let mut clients = JoinSet::new();
    for _ in 0..connections {
        clients.spawn(client(relay.address, size, trips));
        let (socket, _) = upstream.accept().await?;
        servers.spawn(serve(socket, size));
    }
    let before = relay.cpu_time()?;
    let started = Instant::now();
    let mut times = Vec::with_capacity(connections * trips);
    while let Some(client) = clients.join_next().await {
        times.append(&mut client.map_err(io::Error::other)??);
    }
    let elapsed = started.elapsed().as_secs_f64();
    let cpu = (relay.cpu_time()? - before).as_secs_f64();
    let done = times.len() as f64;
    times.sort_unstable();
    let p99 = times[times.len() * 99 / 100];
    Ok([cpu * 1e6 / done, done / elapsed, p99.as_secs_f64() * 1e6])
}

async fn client(relay: SocketAddr, size: usize, trips: usize) -> io::Result<Vec<Duration>> {
    let mut socket = TcpStream::connect(relay).await?;
    socket.set_nodelay(true)?;
    let mut message = vec![0; size];
    let mut times = Vec::with_capacity(trips);
    for _ in 0..trips {
        let started = Instant::now();
        socket.write_all(&message).await?;
        socket.read_exact(&mut message).await?;
        times.push(started.elapsed());
    }
    Ok(times)
}

async fn serve(mut socket: TcpStream, size: usize) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut message = vec![0; size];
    while socket.read_exact(&mut message).await.is_ok() {
        socket.write_all(&message).await?;
    }
    Ok(())
}
