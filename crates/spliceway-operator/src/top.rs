//! The command `spliceway top`: a live view of a running program.
//!
//! ```text
//!   thread `spliceway-ask` ── answers, signals ──▶ main thread: keys, screen
//!            ▲                                          │
//!            └──────────── sessions to end ◀────────────┘
//!   thread `spliceway-tty` ── end of the terminal ──▶ main thread
//! ```

mod help;
mod model;
mod screen;
mod services;
mod style;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hyper::Method;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::terminal::disable_raw_mode;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::api::{SessionPage, Status};
use crate::client::{self, Error};
use model::{Model, Update, Wish};

/// The time between two answers.
const EVERY: Duration = Duration::from_secs(1);
/// The longest time until a signal or an answer is seen.
const GLANCE: Duration = Duration::from_millis(100);
/// The keys that are handled before the next look at answers.
const KEYS_MAX: usize = 100;
/// The time in which the main thread must end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pages of 1,000 sessions that are read. More would take longer than a second to read and
/// sort.
const PAGES_MAX: usize = 8;

/// What the main thread learns from the others.
enum Message {
    Update(Box<Update>),
    Notice(String),
    /// The program does not answer, for this reason.
    Failed(String),
    /// A signal asks this command to end, or the terminal has gone.
    End,
}

/// Shows the program behind `socket` until the operator quits.
pub(crate) fn run(runtime: Runtime, socket: &Path) -> Result<(), Error> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Error::new("top needs a terminal: use `spliceway status --json`"));
    }
    // Without a first answer, the error stays on the ordinary screen.
    runtime.block_on(client::get::<Status>(socket, "/v1/status"))?;
    let socket = socket.to_owned();
    let ((messages, received), (wishes, wished)) = (mpsc::channel(), unbounded_channel());
    let ends = messages.clone();
    thread::Builder::new()
        .name("spliceway-ask".into())
        .spawn(move || runtime.block_on(follow(&socket, &messages, wished)))?;
    thread::Builder::new().name("spliceway-tty".into()).spawn(move || {
        await_hangup();
        end(&ends);
    })?;
    // From here on, a panic restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let shown = serve(&mut terminal, &received, &wishes);
    let restored = ratatui::try_restore();
    Ok(shown.and(restored)?)
}

/// Shows answers and handles keys.
fn serve(
    terminal: &mut ratatui::DefaultTerminal,
    received: &mpsc::Receiver<Message>,
    wishes: &UnboundedSender<u64>,
) -> io::Result<()> {
    let mut model = Model::default();
    let mut is_changed = true;
    loop {
        if std::mem::take(&mut is_changed) {
            terminal.draw(|frame| screen::draw(frame, &mut model))?;
        }
        let mut glance = GLANCE;
        for _ in 0..KEYS_MAX {
            if !event::poll(std::mem::take(&mut glance))? {
                break;
            }
            is_changed = true;
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match model.key(key) {
                    Some(Wish::Quit) => return Ok(()),
                    // If the thread has ended, the next look at its messages says so.
                    Some(Wish::Close(id)) => drop(wishes.send(id)),
                    None => {}
                },
                _ => {}
            }
        }
        loop {
            match received.try_recv() {
                Ok(Message::Update(update)) => model.update(*update),
                Ok(Message::Notice(notice)) => model.say(notice),
                Ok(Message::Failed(why)) => model.miss(why),
                Ok(Message::End) => return Ok(()),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the thread that asks the program has ended"));
                }
            }
            is_changed = true;
        }
    }
}

/// Waits until the terminal has gone. The program need not be told by SIGHUP, for example if the
/// terminal does not control it.
fn await_hangup() {
    let terminal = io::stdin();
    // A hangup is reported without being asked for.
    let mut watched = [PollFd::new(&terminal, PollFlags::empty())];
    while matches!(poll(&mut watched, None), Ok(0) | Err(Errno::INTR)) {}
}

/// Asks the main thread to end. If it does not, it waits for the terminal: the reader of its output
/// is stuck, or crossterm reads again and again from a terminal that has gone. Then this thread
/// ends the process.
#[expect(
    clippy::disallowed_methods,
    reason = "the main thread cannot end, and no bytes are in flight"
)]
fn end(messages: &mpsc::Sender<Message>) {
    let _ = messages.send(Message::End);
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        thread::park_timeout(until - Instant::now());
    }
    // This waits neither for the reader nor for the main thread.
    let _ = disable_raw_mode();
    std::process::exit(1);
}

/// Asks the program once per second, and for what the operator wishes. Ends with a signal, or with
/// the main thread.
async fn follow(socket: &Path, messages: &mpsc::Sender<Message>, wished: UnboundedReceiver<u64>) {
    let signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    let [Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)] = signals else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => end(messages),
        _ = interrupt.recv() => end(messages),
        _ = hangup.recv() => end(messages),
        // A slow answer does not delay the end of a session.
        () = end_sessions(socket, messages, wished) => {}
        () = watch(socket, messages) => {}
    }
}

async fn end_sessions(socket: &Path, messages: &mpsc::Sender<Message>, mut wished: UnboundedReceiver<u64>) {
    while let Some(id) = wished.recv().await {
        let _ = messages.send(Message::Notice(close(socket, id).await));
    }
}

async fn watch(socket: &Path, messages: &mpsc::Sender<Message>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        ticks.tick().await;
        let message = match update(socket, &mut last).await {
            Ok(update) => Message::Update(Box::new(update)),
            Err(error) => Message::Failed(error.to_string()),
        };
        if messages.send(message).is_err() {
            return;
        }
    }
}

async fn update(socket: &Path, last: &mut Option<Instant>) -> Result<Update, Error> {
    let status = client::get(socket, "/v1/status").await?;
    let (mut sessions, mut next) = (Vec::new(), Some(0));
    let now = Instant::now();
    for _ in 0..PAGES_MAX {
        let Some(after) = next else { break };
        let page: SessionPage = client::get(socket, &format!("/v1/sessions?limit=1000&after={after}")).await?;
        sessions.extend(page.sessions);
        next = page.next;
    }
    Ok(Update {
        status,
        sessions,
        has_more: next.is_some(),
        after: last.replace(now).map(|last| now - last),
    })
}

async fn close(socket: &Path, id: u64) -> String {
    let path = format!("/v1/sessions/{id}");
    let closing = client::order(socket, Method::DELETE, &path, client::PATIENCE).await;
    closing.unwrap_or_else(|error| error.to_string())
}
