//! The command `spliceway top`: a live view of a running program.
//!
//! ```text
//!   thread `spliceway-ask` ── answers, signals ──▶ main thread: keys, screen
//!            ▲                                          │
//!            └──────────── sessions to end ◀────────────┘
//!   thread `spliceway-tty` ── end of the terminal ──▶ main thread
//! ```

mod model;
mod screen;

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hyper::Method;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::terminal::disable_raw_mode;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::conversation::failed;
use crate::monitor::admin::client::{self, NoAnswer};
use crate::monitor::admin::view::{Said, SessionPage, Status};
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

/// What the thread that asks the program reports.
enum Report {
    Update(Box<Update>),
    Notice(String),
    /// A signal asks this command to end, or the terminal has gone.
    End,
}

/// Shows the program behind `socket` until the operator quits.
pub(crate) fn run(socket: PathBuf) -> ExitCode {
    match show(socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn show(socket: PathBuf) -> io::Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(io::Error::other("top needs a terminal: use `spliceway status --json`"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Without a first answer, the error stays on the ordinary screen.
    let status = runtime.block_on(client::get::<Status>(&socket, "/v1/status"));
    status.map_err(|error| io::Error::other(error.to_string()))?;
    let ((reports, reported), (wishes, wished)) = (mpsc::channel(), unbounded_channel());
    let ends = reports.clone();
    thread::Builder::new()
        .name("spliceway-ask".into())
        .spawn(move || runtime.block_on(ask(&socket, &reports, wished)))?;
    thread::Builder::new().name("spliceway-tty".into()).spawn(move || {
        await_hangup();
        end(&ends);
    })?;
    // From here on, a panic restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let shown = serve(&mut terminal, &reported, &wishes);
    let restored = ratatui::try_restore();
    shown.and(restored)
}

/// Shows answers and handles keys.
fn serve(
    terminal: &mut ratatui::DefaultTerminal,
    reported: &mpsc::Receiver<Report>,
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
                    // If the thread has ended, the next look at its reports says so.
                    Some(Wish::Close(id)) => drop(wishes.send(id)),
                    None => {}
                },
                _ => {}
            }
        }
        loop {
            match reported.try_recv() {
                Ok(Report::Update(update)) => model.update(*update),
                Ok(Report::Notice(notice)) => model.say(notice),
                Ok(Report::End) => return Ok(()),
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
fn end(reports: &mpsc::Sender<Report>) {
    let _ = reports.send(Report::End);
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
async fn ask(socket: &Path, reports: &mpsc::Sender<Report>, wished: UnboundedReceiver<u64>) {
    let signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    let [Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)] = signals else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => end(reports),
        _ = interrupt.recv() => end(reports),
        _ = hangup.recv() => end(reports),
        // A slow answer does not delay the end of a session.
        () = end_sessions(socket, reports, wished) => {}
        () = watch(socket, reports) => {}
    }
}

async fn end_sessions(socket: &Path, reports: &mpsc::Sender<Report>, mut wished: UnboundedReceiver<u64>) {
    while let Some(id) = wished.recv().await {
        let _ = reports.send(Report::Notice(close(socket, id).await));
    }
}

async fn watch(socket: &Path, reports: &mpsc::Sender<Report>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        ticks.tick().await;
        let report = match update(socket, &mut last).await {
            Ok(update) => Report::Update(Box::new(update)),
            Err(error) => Report::Notice(text(&error)),
        };
        if reports.send(report).is_err() {
            return;
        }
    }
}

async fn update(socket: &Path, last: &mut Option<Instant>) -> Result<Update, NoAnswer> {
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
    match client::request(socket, Method::DELETE, &path, client::PATIENCE).await {
        Ok(body) => match client::parse(&body) {
            Ok(Said::Done(done)) => done,
            _ => format!("session {id} is closing"),
        },
        Err(error) => text(&error),
    }
}

fn text(error: &dyn Display) -> String {
    error.to_string()
}
