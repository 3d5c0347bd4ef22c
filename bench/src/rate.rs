//! Whether a rate limit is kept over TCP, by one relay or by many that share it, and whether what it limits is spliced. Senders that
//! always have more, readers that always read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spliceway::{RateLimit, Relay, RelayStats};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::machine;

const MB: u64 = 1_000_000;
/// Bytes per second, and how many relays share them.
const CASES: [(u64, usize); 3] = [(MB, 1), (100 * MB, 1), (20 * MB, 50)];
/// The burst is over by then.
const BEFORE: Duration = Duration::from_secs(1);

#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
pub(crate) fn run(seconds: u64) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    println!(
        "rate, {seconds} s after the first: what arrived against the limit; bytes spliced of all that were relayed"
    );
    println!("{}; {conditions}", machine::describe());
    println!("{:<28}{:>16}{:>10}{:>10}", "", "arrived, B/s", "off by", "spliced");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for (rate, relays) in CASES {
        let (arrived, spliced) = runtime.block_on(measure(rate, relays, Duration::from_secs(seconds)))?;
        println!(
            "{:<28}{arrived:>16.0}{:>10}{:>10}",
            format!("{} MB/s, {relays} relays", rate / MB),
            format!("{:+.2} %", (arrived / rate as f64 - 1.0) * 100.0),
            format!("{:.1} %", spliced * 100.0)
        );
    }
    Ok(())
}

/// Bytes per second that arrived, and the share of all bytes that was spliced.
async fn measure(rate: u64, relays: usize, time: Duration) -> io::Result<(f64, f64)> {
    let limit = RateLimit::new(rate);
    let arrived = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let mut stats: Vec<RelayStats> = Vec::new();
    for _ in 0..relays {
        let (sender, near) = connection().await?;
        let (far, reader) = connection().await?;
        let relay = Relay::new(near, far).a_to_b_rate_limit(&limit);
        stats.push(relay.stats());
        tasks.spawn(async move { relay.await.map(drop).map_err(io::Error::from) });
        tasks.spawn(send(sender));
        tasks.spawn(count(reader, Arc::clone(&arrived)));
    }
    tokio::time::sleep(BEFORE).await;
    let (before, started) = (arrived.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(time).await;
    let (after, elapsed) = (arrived.load(Ordering::Relaxed), started.elapsed());
    if let Some(ended) = tasks.try_join_next() {
        ended.map_err(io::Error::other)??;
    }
    let delivered = stats.iter().map(|relay| relay.snapshot().a_to_b);
    let (bytes, spliced) = delivered.fold((0, 0), |sum, way| (sum.0 + way.bytes, sum.1 + way.spliced));
    Ok((
        (after - before) as f64 / elapsed.as_secs_f64(),
        spliced as f64 / bytes as f64,
    ))
}

/// Both ends of one, who connected first.
async fn connection() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (connected, accepted) = tokio::join!(TcpStream::connect(listener.local_addr()?), listener.accept());
    Ok((connected?, accepted?.0))
}

async fn send(mut socket: TcpStream) -> io::Result<()> {
    let chunk = vec![0; 64 << 10];
    loop {
        socket.write_all(&chunk).await?;
    }
}

async fn count(mut socket: TcpStream, arrived: Arc<AtomicU64>) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        match socket.read(&mut buffer).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => arrived.fetch_add(bytes as u64, Ordering::Relaxed),
        };
    }
}
