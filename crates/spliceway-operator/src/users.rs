//! The command `spliceway users`: shows what the users of a running program have used, and empties
//! it for one of them.

use std::fmt::{self, Write as _};
use std::path::Path;

use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::api::{UserPage, UserStatus};
use crate::client::{self, Error, PATIENCE};
use crate::text::{bytes, bytes_like, percent};

/// Returns a table of all users.
pub(crate) async fn list(socket: &Path) -> Result<String, Error> {
    let (mut users, mut path) = (Vec::new(), "/v1/users?limit=1000".to_owned());
    loop {
        let page: UserPage = client::get(socket, &path).await?;
        users.extend(page.users);
        let Some(next) = page.next else { break };
        path = format!("/v1/users?limit=1000&after={}", encoded(&next));
    }
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = table(&mut text, &users);
    Ok(text)
}

/// Sets what this user has used to 0, and returns what was done.
pub(crate) async fn reset(socket: &Path, user: &str) -> Result<String, Error> {
    let path = format!("/v1/users/{}/reset", encoded(user));
    let done = client::order(socket, Method::POST, &path, PATIENCE).await?;
    Ok(done + "\n")
}

/// Returns a name as a part of a path.
pub(crate) fn encoded(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

/// Writes a table of users, with the sessions that each may have, and a line for each period that
/// has a quota.
pub(crate) fn table(text: &mut String, users: &[UserStatus]) -> fmt::Result {
    writeln!(
        text,
        "{:<20} {:>9} {:>9} {:>10} {:>6} {:>20}",
        "USER", "SESSIONS", "USED", "QUOTA", "SHARE", "RESETS"
    )?;
    for user in users {
        // A longer name does not fit.
        let mut name: String = user.user.chars().take(20).collect();
        let mut sessions = match user.max_conns {
            Some(max) => format!("{}/{max}", user.sessions),
            None => user.sessions.to_string(),
        };
        let has_quota = user.used.iter().any(|period| period.quota.is_some());
        let shown = user.used.iter().filter(|period| {
            if has_quota {
                period.quota.is_some()
            } else {
                period.period == "month"
            }
        });
        for period in shown {
            let quota = period.quota.map_or("-".to_owned(), |quota| bytes_like(quota, quota));
            let used = period
                .quota
                .map_or_else(|| bytes(period.bytes as f64), |quota| bytes_like(period.bytes, quota));
            let share = period
                .quota
                .map_or("-".to_owned(), |quota| percent(period.bytes as f64, quota as f64));
            writeln!(
                text,
                "{name:<20} {sessions:>9} {used:>9} {quota:>10} {share:>6} {:>20}",
                period.resets
            )?;
            // The second line is about the same user.
            (name, sessions) = (String::new(), String::new());
        }
    }
    Ok(())
}
