//! The command `spliceway top`: a live view of a running program.
//!
//! ```text
//!   thread `spliceway-ask` ── answers, signals ──▶ main thread: keys, screen
//!            ▲                                          │
//!            └──────────── sessions to end ◀────────────┘
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
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::admin::client::{self, NoAnswer};
use crate::admin::view::{Said, SessionPage, Status};
use model::{Model, Update, Wish};

/// The time between two answers.
const EVERY: Duration = Duration::from_secs(1);
/// The longest time until a signal or an answer is seen.
const GLANCE: Duration = Duration::from_millis(100);
/// The pages of 1,000 sessions that are read. More would take longer than a second to read and
/// sort.
const PAGES_MAX: usize = 8;

/// What the thread that asks the program reports.
enum Report {
    Update(Box<Update>),
    Notice(String),
    /// A signal asks this command to end.
    Signal,
}

/// Shows the program behind `socket` until the operator quits.
pub(crate) fn run(socket: PathBuf) -> ExitCode {
    match show(socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::log::announce(&format_args!("spliceway: {error}"));
            ExitCode::FAILURE
        }
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
    thread::Builder::new()
        .name("spliceway-ask".into())
        .spawn(move || runtime.block_on(ask(&socket, &reports, wished)))?;
    // From here on, a panic restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let shown = serve(&mut terminal, &reported, &wishes);
    ratatui::try_restore()?;
    shown
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
        if event::poll(GLANCE)? {
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
                Ok(Report::Signal) => return Ok(()),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the thread that asks the program has ended"));
                }
            }
            is_changed = true;
        }
    }
}

/// Asks the program once per second, and for what the operator wishes. Ends with a signal, or with
/// the main thread.
async fn ask(socket: &Path, reports: &mpsc::Sender<Report>, mut wished: UnboundedReceiver<u64>) {
    let signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    let [Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)] = signals else {
        return;
    };
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        let report = tokio::select! {
            _ = terminate.recv() => Report::Signal,
            _ = interrupt.recv() => Report::Signal,
            _ = hangup.recv() => Report::Signal,
            id = wished.recv() => match id {
                Some(id) => Report::Notice(close(socket, id).await),
                None => return,
            },
            _ = ticks.tick() => match update(socket, &mut last).await {
                Ok(update) => Report::Update(Box::new(update)),
                Err(error) => Report::Notice(text(&error)),
            }
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
