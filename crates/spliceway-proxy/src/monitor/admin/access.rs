//! Whose requests a socket carries out: those of whoever may open it, or those with a token.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderMap};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::answer::Failed;
use crate::access::auth::tokens::{Scope, Tokens};
use crate::log::LogThrottle;
use crate::monitor::control::By;
use crate::monitor::overview::Overview;

const SCHEME: &[u8] = b"Bearer";

/// Whose requests a socket carries out.
pub(in crate::monitor) enum Access {
    /// The mode of the socket decides.
    Open,
    /// Each request needs a token.
    Tokens(Required),
}

/// The tokens that a socket requires.
pub(in crate::monitor) struct Required {
    /// The tokens while no settings are in force.
    first: Arc<Tokens>,
    refused: Mutex<LogThrottle>,
}

impl Access {
    pub(in crate::monitor) fn by_tokens(first: Arc<Tokens>) -> Self {
        let refused = Mutex::default();
        Self::Tokens(Required { first, refused })
    }

    /// Returns who asks. `scope` is `None` for a request that does not exist.
    ///
    /// # Errors
    /// Returns the answer if the token that is in force now does not permit the request.
    pub(super) fn check(&self, headers: &HeaderMap, scope: Option<Scope>, overview: &Overview) -> Result<By, Failed> {
        let Self::Tokens(required) = self else {
            return Ok(By::default());
        };
        let tokens = match overview.settings() {
            Some(settings) => settings.tokens().map(Arc::clone),
            None => Some(Arc::clone(&required.first)),
        };
        let token = tokens.as_ref().and_then(|tokens| tokens.find(presented(headers)?));
        let Some(token) = token else {
            if required.refused.lock().admits(Instant::now()) {
                tracing::warn!("admin: refuses a request without a valid token");
            }
            let why = "expected one header `Authorization: Bearer TOKEN` with a token of this program";
            return Err(Failed(StatusCode::UNAUTHORIZED, why.to_owned()));
        };
        match scope.filter(|scope| !token.permits(*scope)) {
            None => Ok(By(Some(Arc::clone(&token.name)))),
            Some(scope) => {
                let (name, scope) = (token.name.escape_debug(), scope.as_str());
                let why = format!("the token `{name}` does not have the scope `{scope}`, which this request needs");
                Err(Failed(StatusCode::FORBIDDEN, why))
            }
        }
    }
}

/// Returns the token in the only header of this kind.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (all.next()?.as_bytes(), all.next()) else {
        return None;
    };
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    let token = token.strip_prefix(b" ")?.trim_ascii();
    scheme.eq_ignore_ascii_case(SCHEME).then_some(token)
}
