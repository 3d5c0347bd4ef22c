//! The answers of the admin socket.

use std::borrow::Cow;

use hyper::StatusCode;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde::Serialize;

use crate::monitor::control::NotDone;
use crate::monitor::http_server::{Answer, response};
use crate::settings::Refused;

const JSON: &str = "application/json";

/// Why a request was not carried out: the status, and a sentence.
pub(super) struct Failed(pub(super) StatusCode, pub(super) String);

pub(super) type Answered = Result<Answer, Failed>;

impl From<NotDone> for Failed {
    fn from(not_done: NotDone) -> Self {
        match not_done {
            NotDone::Busy(why) => Self(StatusCode::SERVICE_UNAVAILABLE, why),
            NotDone::Refused(why) | NotDone::Change(Refused::Foreign(why)) => Self(StatusCode::CONFLICT, why),
            NotDone::Change(Refused::Missing(why)) => Self(StatusCode::NOT_FOUND, why),
            NotDone::Change(Refused::Unexpected(why)) => Self(StatusCode::PRECONDITION_FAILED, why),
            NotDone::Change(Refused::Invalid(why)) => Self(StatusCode::UNPROCESSABLE_ENTITY, why),
        }
    }
}

pub(super) fn no_service(name: &str) -> Failed {
    let why = format!("there is no service `{}`", name.escape_debug());
    Failed(StatusCode::NOT_FOUND, why)
}

/// Returns a part of a path.
pub(super) fn decoded(part: &str) -> Cow<'_, str> {
    percent_decode_str(part).decode_utf8_lossy()
}

pub(super) fn ok(value: &impl Serialize) -> Answered {
    Ok(json(StatusCode::OK, value))
}

/// Makes a value and its text in a thread that serves no session, one at a time. It is for answers
/// about all services, of which there may be thousands.
pub(super) async fn long<T: Serialize>(make: impl FnOnce() -> T + Send + 'static) -> Answered {
    static TURN: Mutex<()> = Mutex::new(());
    let made = tokio::task::spawn_blocking(move || {
        let _turn = TURN.lock();
        ok(&make())
    });
    let failed = |error| Failed(StatusCode::INTERNAL_SERVER_ERROR, format!("the answer failed: {error}"));
    made.await.map_err(failed)?
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    let mut text = serde_json::to_vec(value).expect("these types have only text and numbers");
    text.push(b'\n');
    response(status, JSON, text)
}
