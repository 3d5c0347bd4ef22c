use std::sync::Arc;
use std::time::Duration;

use spliceway::{Engine, RateLimit, Relay, RelayOptions, RelayStats};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::{Line, every_way, pass};
use crate::support::pattern::Pattern;
use crate::support::{MIB, finish};

/// Starts a relay between a sender that always has bytes and a reader that always reads. The reader
/// checks the bytes.
fn stream(seed: u64, limit: &RateLimit) -> RelayStats {
    let ((mut near, near_end), (mut far, far_end)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let relay = Relay::with_options(near_end, far_end, RelayOptions::new().a_to_b_rate_limit(limit));
    let stats = relay.stats();
    tokio::spawn(relay);
    // Sends the same piece repeatedly. A gigabyte of the pattern would take longer to make than to
    // relay.
    let piece = Arc::<[u8]>::from(Pattern::new(seed).take(1_000_003));
    let sent = Arc::clone(&piece);
    tokio::spawn(async move { while near.write_all(&sent).await.is_ok() {} });
    tokio::spawn(async move {
        let (mut buffer, mut at) = (vec![0; 256 << 10], 0);
        while let Ok(read @ 1..) = far.read(&mut buffer).await {
            let mut got = &buffer[..read];
            while !got.is_empty() {
                let count = got.len().min(piece.len() - at);
                assert!(got[..count] == piece[at..at + count], "stream {seed}: a wrong byte");
                (got, at) = (&got[count..], (at + count) % piece.len());
            }
        }
    });
    stats
}

/// Returns how many bytes all relays delivered, and how many of those were spliced.
fn delivered(relays: &[RelayStats]) -> (u64, u64) {
    let each = relays.iter().map(|relay| relay.snapshot().a_to_b);
    each.fold((0, 0), |sum, way| (sum.0 + way.bytes, sum.1 + way.spliced))
}

#[tokio::test(start_paused = true)]
async fn a_rate_holds_within_3_percent_for_1_and_50_spliced_relays() {
    const MB: u64 = 1_000_000;
    // The slowest rate gives grants of 2 kB. Such a grant alone would not be worth a splice.
    for (bytes_per_second, relays, seconds) in [(MB / 10, 1, 10), (MB, 1, 10), (100 * MB, 1, 2), (20 * MB, 50, 10)] {
        let limit = RateLimit::new(bytes_per_second);
        let relays: Vec<_> = (0..relays).map(|seed| stream(seed, &limit)).collect();
        pass(Duration::from_secs(1)).await;
        let (start, (before, spliced_before)) = (Instant::now(), delivered(&relays));
        pass(Duration::from_secs(seconds)).await;
        let (after, spliced_after) = delivered(&relays);
        let rate = (after - before) as f64 / start.elapsed().as_secs_f64();
        let off = rate / bytes_per_second as f64 - 1.0;
        let spliced = (spliced_after - spliced_before) as f64 / (after - before) as f64;
        println!(
            "{} relays, {bytes_per_second} B/s: off by {:+.2} %, {:.1} % spliced",
            relays.len(),
            off * 100.0,
            spliced * 100.0
        );
        assert!(off.abs() < 0.03, "off by {off}");
        assert!(spliced >= 0.95, "{spliced} spliced");
    }
}

#[tokio::test(start_paused = true)]
async fn nested_rate_limits_hold_for_each_and_for_all_spliced_relays() {
    const MB: u64 = 1_000_000;
    // One of three relays has a lower limit of its own, and leaves the rest of the common limit to
    // the other two.
    let all = RateLimit::new(10 * MB);
    let own = [MB, 20 * MB, 20 * MB].map(|rate| RateLimit::new(rate).within(&all));
    let relays: Vec<_> = own.iter().zip(0..).map(|(limit, seed)| stream(seed, limit)).collect();
    pass(Duration::from_secs(1)).await;
    let each = || relays.iter().map(|relay| delivered(std::slice::from_ref(relay)).0);
    let before: Vec<_> = each().collect();
    pass(Duration::from_secs(10)).await;
    let rates: Vec<_> = each()
        .zip(before)
        .map(|(after, before)| (after - before) / 10)
        .collect();
    println!("{rates:?} B/s");
    let near = |rate: u64, expected: u64| rate.abs_diff(expected) < expected * 3 / 100;
    assert!(near(rates[0], MB), "its own: {rates:?}");
    assert!(near(rates.iter().sum(), 10 * MB), "all: {rates:?}");
    let (bytes, spliced) = delivered(&relays);
    assert!(spliced as f64 / bytes as f64 >= 0.95, "{spliced} of {bytes} spliced");
}

/// The stream starts with the burst, and continues at the rate.
#[tokio::test(start_paused = true)]
async fn a_limited_stream_arrives_byte_for_byte_at_its_rate() {
    every_way(async |variant| {
        let limit = RateLimit::with_burst(1 << 20, 1 << 18);
        let Line {
            mut near,
            mut far,
            relay,
        } = variant.start(RelayOptions::new().rate_limit(&limit));
        let start = Instant::now();
        let send = async {
            Pattern::new(1).send(&mut near, 4 * MIB).await;
            finish(&near);
        };
        tokio::join!(send, Pattern::new(1).expect_end(&mut far, 4 * MIB));
        let took = start.elapsed();
        assert!(
            (3.6..4.0).contains(&took.as_secs_f64()),
            "4 MiB less the burst took {took:?}"
        );
        finish(&far);
        let done = relay.end().await;
        assert_eq!(done.forth.spliced > 3 * MIB, variant.splices(), "{:?}", done.forth);
    })
    .await;
}

/// The relay reads nothing while it waits for its limit, so it holds no pipe.
#[tokio::test(start_paused = true)]
async fn a_relay_that_waits_for_its_rate_limit_holds_no_pipe_and_no_bytes() {
    let pool = spliceway::PipePool::new(crate::support::rig::limits());
    let limit = RateLimit::with_burst(1_000_000, 100_000);
    let ((mut near, near_end), (far, far_end)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let relay = Relay::with_options(
        near_end,
        far_end,
        RelayOptions::new()
            .engine(Engine::Splice)
            .pool(&pool)
            .rate_limit(&limit),
    );
    let stats = relay.stats();
    let running = tokio::spawn(relay);
    tokio::spawn(async move {
        let chunk = vec![7; MIB as usize];
        while near.write_all(&chunk).await.is_ok() {}
    });
    let mut seen = 0;
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..500 {
        // Between two grants of 20 ms, all granted bytes have been delivered.
        pass(Duration::from_millis(7)).await;
        while let Ok(read @ 1..) = far.try_read(&mut buffer) {
            seen += read as u64;
        }
        assert_eq!(pool.stats().lent, 0, "a pipe held while waiting");
        assert_eq!(stats.snapshot().a_to_b.bytes, seen, "bytes held while waiting");
    }
    assert!(seen > 3_000_000, "{seen}");
    running.abort();
}

/// A relay that copies asks the limit before it knows whether its reader has bytes.
#[tokio::test(start_paused = true)]
async fn an_idle_relay_that_copies_keeps_no_grant_of_a_shared_limit() {
    let limit = RateLimit::with_burst(1_000, 1_000);
    let options = RelayOptions::new().rate_limit(&limit);
    let ((_near, near_end), (_far, far_end)) = (tokio::io::duplex(64), tokio::io::duplex(64));
    let mut idle = tokio_test::task::spawn(Relay::with_options(near_end, far_end, options.clone()));
    assert!(idle.poll().is_pending());

    let ((mut near, near_end), (mut far, far_end)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let start = tokio::time::Instant::now();
    let running = tokio::spawn(Relay::with_options(near_end, far_end, options));
    near.write_all(&[7; 1_000]).await.unwrap();
    far.read_exact(&mut [0; 1_000]).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO, "the whole burst was free");
    running.abort();
}
