//! What the admin socket says, as JSON: docs/admin.md describes it. The program writes these types,
//! and the commands read them.
#![expect(missing_docs, reason = "a field without a comment has a name that says it")]

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The state of the program.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Status {
    pub version: String,
    /// The name of the machine.
    pub host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The time of this answer, in seconds since 1970.
    pub time: f64,
    pub started: String,
    pub uptime_seconds: f64,
    /// `serving`, `draining`, or `failed: PART`.
    pub state: String,
    pub ready: bool,
    pub sessions: SessionCounts,
    pub rates: Rates,
    /// The sum of all services.
    pub recent: Recent,
    pub services: Vec<ServiceStatus>,
    /// The services that the status page leaves out.
    #[serde(skip_serializing_if = "is_zero")]
    pub services_left_out: u64,
    pub pipes: Pipes,
    /// Reasons for which directions copied, without those that never occurred.
    pub fallbacks: Vec<ReasonCount>,
    pub limits: Limits,
    pub log: LogStatus,
    /// Whether the last update of the quota file has worked. `None` if there is no such file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quotas_are_saved: Option<bool>,
    /// The first users with limits, in the order of their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserStatus>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SessionCounts {
    pub active: u64,
    pub total: u64,
    /// How often a listener had to wait for a session to end.
    pub waits: u64,
}

/// What happened per second, over the last seconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Rates {
    pub over_seconds: f64,
    pub bytes_up: f64,
    pub bytes_down: f64,
    /// The spliced bytes of both directions.
    pub spliced: f64,
    pub sessions: f64,
}

/// The sessions of about the last minute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Recent {
    pub over_seconds: f64,
    /// The sessions that began.
    pub sessions: u64,
    /// The sessions that failed for a reason of the service or of a target.
    pub failed: u64,
    /// The sessions that were refused for a reason of their client.
    pub refused: u64,
    /// The reasons of both, the most frequent first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<ReasonCount>,
}

/// Whether a service needs the operator, the worst first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No backend gets clients, or most sessions fail.
    Failing,
    /// Some backends get no clients, or a part of the sessions fails.
    Degraded,
    /// The service works. A value that this version does not know counts as this one.
    #[default]
    #[serde(other)]
    Ok,
}

/// How many backends get clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BackendCounts {
    pub up: u64,
    /// Those that the operator has drained.
    pub draining: u64,
    pub all: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServiceStatus {
    pub name: String,
    /// Whether the service needs the operator: `failing`, `degraded` or `ok`.
    // A generated client would refuse a value that it does not know.
    #[schemars(with = "String")]
    pub health: Health,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<String>,
    /// `accepting`, `draining`, or `removed` while sessions of a removed service still run.
    pub state: String,
    pub sessions: SessionCounts,
    pub bytes_up: u64,
    pub bytes_down: u64,
    pub spliced_up: u64,
    pub spliced_down: u64,
    pub lost_up: u64,
    pub lost_down: u64,
    pub datagrams_up: u64,
    pub datagrams_down: u64,
    pub rates: Rates,
    pub recent: Recent,
    /// `None` if the service has no choice of backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_counts: Option<BackendCounts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<Backend>,
    /// Clients that wait for a backend.
    #[serde(skip_serializing_if = "is_zero")]
    pub waiting: u64,
    /// `None` if clients speak no TLS to the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsStatus>,
}

/// The certificates of a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TlsStatus {
    pub certificates: u64,
    /// The certificate that ends first: its file, when it ends, and the time until then. The time
    /// is negative afterwards.
    pub file: String,
    pub expires: String,
    pub expires_in_seconds: i64,
    /// The changed files that cannot be used, so that the previous TLS files stay in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<StaleStatus>,
    /// The list of revoked certificates of clients that expires first. `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crl: Option<CrlStatus>,
    /// The names for which ACME issues certificates. Those whose last try failed come first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acme: Vec<AcmeStatus>,
}

/// A list of revoked certificates, and the time of its next update, when it expires.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CrlStatus {
    pub file: String,
    pub expires: String,
    /// The time is negative afterwards.
    pub expires_in_seconds: i64,
}

/// A name for which ACME issues a certificate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AcmeStatus {
    pub name: String,
    /// When the certificate in force ends. `None` if there is none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<String>,
    /// Why the last try failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Why and since when changed certificates are not in force.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StaleStatus {
    pub since: String,
    pub why: String,
}

/// One of several backends of a forwarder.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Backend {
    pub name: String,
    /// `up`, `draining`, `ejected` or `down`.
    pub state: String,
    pub weight: u32,
    pub backup: bool,
    pub sessions: u64,
    /// Connections, failures and ejections so far.
    pub connections: u64,
    pub failures: u64,
    pub ejections: u64,
    /// Why and since when the backend is down or ejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Trouble>,
}

/// Why and since when something does not work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Trouble {
    pub since: String,
    pub for_seconds: u64,
    pub why: String,
}

/// The pipe pool.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Pipes {
    pub lent: u64,
    pub idle: u64,
    pub pages: u64,
    pub created: u64,
    pub reused: u64,
    pub denied: u64,
}

/// How often something happened for this reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ReasonCount {
    pub reason: String,
    pub count: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Limits {
    pub sessions: u64,
    pub descriptors: u64,
    pub pipes: u64,
    pub pipe_pages: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LogStatus {
    pub level: String,
    pub lines_dropped: u64,
}

/// A page of the list of sessions.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SessionPage {
    pub sessions: Vec<SessionView>,
    /// The value of `after` for the next page.
    pub next: Option<usize>,
}

/// A page of the list of users.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct UserPage {
    pub users: Vec<UserStatus>,
    /// The value of `after` for the next page.
    pub next: Option<String>,
}

/// The account of a user, for the operator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct UserStatus {
    pub user: String,
    pub sessions: u64,
    /// The sessions that the user may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_conns: Option<u32>,
    /// The bytes per second that the user may send and receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_in: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_out: Option<u64>,
    /// What was used in the current periods, whether or not there is a quota.
    pub used: Vec<PeriodStatus>,
}

/// The bytes of a user in a day or a month.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PeriodStatus {
    /// `day` or `month`.
    pub period: String,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// The time at which the period ends.
    pub resets: String,
}

/// One open session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SessionView {
    pub id: u64,
    pub service: String,
    /// An address and a port, or `unix`.
    pub client: String,
    pub user: Option<String>,
    /// The share of a quota that the user has used, in all sessions.
    pub quota_used: Option<f64>,
    pub protocol: Option<String>,
    /// The name of a server that a TLS client stated.
    pub sni: Option<String>,
    /// The version of TLS, if the program terminates the TLS of the client.
    pub tls: Option<String>,
    /// Whose TLS the kernel has: `client`, `target` or `both`.
    pub kernel_tls: Option<String>,
    pub target: Option<String>,
    pub dialled: Option<String>,
    pub started: String,
    pub duration_ms: u64,
    pub connect_ms: Option<u64>,
    /// `handshake`, `dial`, `relay`, or `closing` after a request to close it.
    pub state: String,
    /// The time since bytes were last seen to move.
    pub idle_ms: Option<u64>,
    pub bytes_up: u64,
    pub bytes_down: u64,
    pub spliced_up: u64,
    pub spliced_down: u64,
    /// Why bytes that might have been spliced were copied.
    pub fallback_up: Option<String>,
    pub fallback_down: Option<String>,
}

/// All services.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServiceList {
    pub services: Vec<ListedService>,
}

/// One service, and where its table is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ListedService {
    pub name: String,
    /// `memory`, `own-file` (a file that changes of the service replace), `file` (of the operator),
    /// or `command-line`.
    pub place: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The version of the table.
    pub etag: String,
    /// The keys of a table `[[service]]`.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub table: serde_json::Value,
}

/// An answer without data: what was done, or what is wrong.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    #[serde(rename = "done")]
    Done(String),
    #[serde(rename = "error")]
    Error(String),
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
