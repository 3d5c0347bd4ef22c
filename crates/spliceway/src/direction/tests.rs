//! Directions that rest, and what is timed of them, which takes a word with what is inside.

use std::future::poll_fn;
use std::mem::replace;
use std::time::Duration;

use spliceway_core::{PipePool, SizeClass};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::yield_now;
use tokio::time::advance;
use tokio_test::{assert_pending, assert_ready, task};

use super::*;
use crate::options::Rests;

/// A direction, with what it moves between, and both far ends.
struct Rig {
    moving: Moving,
    near: UnixStream,
    source: UnixStream,
    sink: UnixStream,
    far: UnixStream,
    counts: Counts,
}

impl Moving {
    /// Rests since then.
    pub(crate) fn rest(&mut self, since: Instant) {
        let course = self.course();
        let rest = Rest::new(course.rests_by.expect("it may rest"));
        course.rhythm = Some(Box::new(Rhythm::resting(since, rest)));
    }

    fn course(&mut self) -> &mut Course {
        match &mut self.means {
            Means::Splicing { course, .. } => course,
            Means::Copying(_) | Means::Refused => unreachable!("these are sockets"),
        }
    }
}

impl Rig {
    fn new(options: &RelayOptions) -> Self {
        let ((near, source), (sink, far)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let counts = Counts::default();
        Self {
            moving: Moving::new(&source, &sink, Bytes::new(), &options.a_to_b, options, &counts),
            near,
            source,
            sink,
            far,
            counts,
        }
    }

    fn rhythm(&mut self) -> &mut Option<Box<Rhythm>> {
        &mut self.moving.course().rhythm
    }

    fn rest(&mut self, since: Instant) {
        self.moving.rest(since);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Moved, Broken>> {
        self.moving.poll(cx, &mut self.source, &mut self.sink, &self.counts)
    }

    /// Moves so many bytes from one far end to the other, then the end. `before_poll` is called before each poll.
    async fn relay(&mut self, bytes: usize, mut before_poll: impl FnMut(&mut Self)) {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut near, mut far) = (replace(&mut self.near, near), replace(&mut self.far, far));
        let sent: Vec<u8> = (0..bytes)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let mut got = vec![0; bytes];
        let send = async {
            near.write_all(&sent).await.unwrap();
            near.shutdown().await.unwrap();
        };
        let relayed = poll_fn(|cx| {
            before_poll(self);
            self.poll(cx)
        });
        let ((), read, moved) = tokio::join!(send, far.read_exact(&mut got), relayed);
        read.unwrap();
        assert_eq!(moved.unwrap(), Moved::All);
        assert!(got == sent);
    }
}

/// Bytes of a message that may go either way.
const MESSAGE: usize = 16 << 10;

impl Rig {
    /// One message, in one poll.
    async fn pass_message(&mut self) {
        self.near.write_all(&[1; MESSAGE]).await.unwrap();
        self.source.readable().await.unwrap();
        assert_pending!(task::spawn(()).enter(|cx, _| self.poll(cx)));
        self.far.read_exact(&mut [0; MESSAGE]).await.unwrap();
    }

    /// Passes a message of one byte, in one poll, before which turns were long, and may not be afterwards.
    async fn is_disturbed(&mut self) -> bool {
        turn::undisturbed();
        self.near.write_all(b"?").await.unwrap();
        self.source.readable().await.unwrap();
        assert_pending!(task::spawn(()).enter(|cx, _| self.poll(cx)));
        !turn::may_be_long()
    }

    fn takes_long_turns(&mut self) -> bool {
        let Means::Splicing { mover, .. } = &self.moving.means else {
            unreachable!("these are sockets");
        };
        format!("{mover:?}").contains("long_turns: true")
    }
}

#[tokio::test]
#[cfg_attr(miri, ignore = "Miri has neither these sockets nor the pipes of a pool")]
async fn turns_are_long_where_nobody_passes_messages() {
    turn::message();
    let mut rig = Rig::new(&RelayOptions::new());
    let mut polled = task::spawn(());
    assert_pending!(polled.enter(|cx, _| rig.poll(cx)));
    assert!(!rig.takes_long_turns());
    turn::undisturbed();
    assert_pending!(polled.enter(|cx, _| rig.poll(cx)));
    assert!(rig.takes_long_turns());
    rig.pass_message().await;
    assert_pending!(polled.enter(|cx, _| rig.poll(cx)));
    assert!(!rig.takes_long_turns());
}

#[tokio::test]
#[cfg_attr(miri, ignore = "Miri has neither these sockets nor the pipes of a pool")]
async fn a_message_is_one_however_it_goes() {
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        let mut rig = Rig::new(&RelayOptions::new().engine(engine));
        assert!(rig.is_disturbed().await, "{engine:?}");
    }
    let ((mut near, mut source), (mut sink, _far)) = (tokio::io::duplex(64), tokio::io::duplex(64));
    let (options, counts) = (RelayOptions::new(), Counts::default());
    let mut copying = Moving::new(&source, &sink, Bytes::new(), &options.a_to_b, &options, &counts);
    turn::undisturbed();
    near.write_all(b"?").await.unwrap();
    let mut polled = task::spawn(());
    assert_pending!(polled.enter(|cx, _| copying.poll(cx, &mut source, &mut sink, &counts)));
    assert!(!turn::may_be_long());
}

fn in_an_hour() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

#[tokio::test(start_paused = true)]
#[cfg_attr(miri, ignore = "Miri has neither these sockets nor the pipes of a pool")]
async fn a_direction_that_rests_by_the_timer_is_not_woken_before() {
    let mut rig = Rig::new(&RelayOptions::new().rests(Rests::Timer));
    rig.near.write_all(b"all").await.unwrap();
    rig.near.shutdown().await.unwrap();
    rig.source.readable().await.unwrap();
    rig.rest(in_an_hour());
    let mut polled = task::spawn(());
    assert_pending!(polled.enter(|cx, _| rig.poll(cx)));
    advance(Duration::from_millis(1)).await;
    assert!(!polled.is_woken());
    assert_pending!(polled.enter(|cx, _| rig.poll(cx)), "somebody else woke it");
    advance(Duration::from_millis(2)).await;
    assert!(polled.is_woken());
    assert_eq!(rig.counts.bytes(), 0);
    assert_eq!(poll_fn(|cx| rig.poll(cx)).await.unwrap(), Moved::All);
    assert_eq!(rig.counts.bytes(), 3);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has neither these sockets nor the pipes of a pool")]
fn a_direction_of_which_no_timer_is_known_rests_without_one_is_woken_and_goes_on() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_io().build().unwrap().block_on(async {
        let mut rig = Rig::new(&RelayOptions::new());
        rig.near.write_all(b"all").await.unwrap();
        rig.near.shutdown().await.unwrap();
        rig.rest(in_an_hour());
        let mut polled = task::spawn(());
        assert_pending!(polled.enter(|cx, _| rig.poll(cx)));
        yield_now().await;
        assert!(polled.is_woken());
        assert_eq!(rig.counts.bytes(), 0);

        rig.rest(Instant::now());
        assert_eq!(poll_fn(|cx| rig.poll(cx)).await.unwrap(), Moved::All);
        assert_eq!(rig.counts.bytes(), 3);
    });
}

#[tokio::test(start_paused = true)]
#[cfg_attr(miri, ignore = "Miri has neither these sockets nor the pipes of a pool")]
async fn a_direction_that_is_to_finish_does_not_rest() {
    for rests in [Rests::Auto, Rests::Timer] {
        let mut rig = Rig::new(&RelayOptions::new().rests(rests));
        rig.near.write_all(b"all").await.unwrap();
        rig.rest(in_an_hour());
        let mut polled = task::spawn(());
        assert_pending!(polled.enter(|cx, _| rig.poll(cx)));
        rig.moving.finish();
        let moved = assert_ready!(polled.enter(|cx, _| rig.poll(cx)));
        assert_eq!(moved.unwrap(), Moved::UpToLimit);
        assert_eq!(rig.counts.bytes(), 3);
    }
}

#[tokio::test]
#[cfg_attr(miri, ignore = "Miri has neither these sockets nor the pipes of a pool")]
async fn a_flow_that_rests_again_and_again_arrives_byte_by_byte_through_small_pipes() {
    let pool = PipePool::new(PipePool::global().limits().clone());
    for how in [Rests::Auto, Rests::Timer] {
        let mut rig = Rig::new(&RelayOptions::new().engine(Engine::Splice).rests(how).pool(&pool));
        let mut rests = 0;
        let rest_again = |rig: &mut Rig| {
            if !rig.rhythm().as_ref().is_some_and(|rhythm| rhythm.is_resting()) {
                rests += 1;
                rig.rest(Instant::now());
            }
        };
        rig.relay(4 << 20, rest_again).await;
        // What a socket holds is less than a quarter of it.
        assert!(rests > 4, "{rests}");
        assert_eq!(rig.counts.snapshot().spliced, 4 << 20);
        assert_eq!(
            pool.stats().pages * rustix::param::page_size(),
            SizeClass::Kib64.bytes()
        );
    }
}

#[tokio::test]
#[cfg_attr(miri, ignore = "Miri has neither these sockets nor the pipes of a pool")]
async fn only_a_flow_of_a_mib_that_may_rest_is_judged() {
    let limited = RelayOptions::new().rate_limit(&crate::RateLimit::new(u64::MAX));
    for (options, bytes, is_judged) in [
        (RelayOptions::new(), 3 << 20, true),
        (RelayOptions::new(), 100 << 10, false),
        (RelayOptions::new().rests(Rests::Never), 3 << 20, false),
        (limited, 3 << 20, false),
    ] {
        let mut rig = Rig::new(&options);
        rig.relay(bytes, |_| {}).await;
        assert_eq!(rig.rhythm().is_some(), is_judged);
    }
}

#[tokio::test]
#[cfg_attr(miri, ignore = "Miri has neither these sockets nor the pipes of a pool")]
async fn what_is_taken_and_how_often_that_was_all_is_counted() {
    for engine in [Engine::Copy, Engine::Splice] {
        let mut rig = Rig::new(&RelayOptions::new().engine(engine));
        let rhythm = Rhythm::new(Instant::now(), &rhythm::Thread::default(), Rest::new(Clock::Timer));
        *rig.rhythm() = Some(Box::new(rhythm));
        let before = WORKER.with_borrow(|worker| worker.flows.taken());
        for times in 1..5 {
            rig.near.write_all(b"all").await.unwrap();
            rig.source.readable().await.unwrap();
            let mut polled = task::spawn(());
            assert_pending!(polled.enter(|cx, _| rig.poll(cx)));
            assert_eq!(rig.counts.bytes(), 3 * times);
            let counted = rig.rhythm().as_ref().map(|rhythm| rhythm.counted());
            // The first may be the end of a large write.
            assert_eq!(counted, Some((3 * times, times as u32 - 1)));
        }
        let taken = WORKER.with_borrow(|worker| worker.flows.taken()) - before;
        assert_eq!(taken, 12);
    }
}

#[tokio::test]
#[cfg_attr(miri, ignore = "Miri has neither these sockets nor the pipes of a pool")]
async fn the_first_message_that_a_direction_splices_is_not_timed() {
    WORKER.with_borrow_mut(|worker| worker.meter = Meter::trying_splices());
    let mut rig = Rig::new(&RelayOptions::new());
    let mut timed = Vec::new();
    for _ in 0..4 {
        rig.pass_message().await;
        timed.extend(WORKER.with_borrow(|worker| worker.meter.timed_on_trial()));
    }
    assert_eq!(
        rig.counts.snapshot().copied,
        MESSAGE as u64,
        "the first tells of which size they are"
    );
    assert_eq!(timed, [0, 0, 1, 2]);
    WORKER.with_borrow_mut(|worker| worker.meter = Meter::new());
}

#[tokio::test]
#[cfg_attr(miri, ignore = "Miri has neither these sockets nor the pipes of a pool")]
async fn a_trial_is_of_all_directions_from_their_next_message_on() {
    WORKER.with_borrow_mut(|worker| worker.meter = Meter::new());
    let mut rig = Rig::new(&RelayOptions::new());
    let mut copied = Vec::new();
    for meter in [Meter::new(), Meter::new(), Meter::trying_splices(), Meter::new()] {
        WORKER.with_borrow_mut(|worker| worker.meter = meter);
        rig.pass_message().await;
        copied.push(rig.counts.snapshot().copied / MESSAGE as u64);
    }
    assert_eq!(copied, [1, 2, 2, 3]);
}
