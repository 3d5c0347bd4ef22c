//! The configuration: what the command line and files can say.
//!
//! ```text
//!   command line ─ cli ────┐
//!                          ├─▶ Config ─ settings/settle ─▶ Settings
//!   files ─ config/source ─┘   (typed)                     (checked, complete)
//! ```
//!
//! A value is parsed here, and every other check is in the second step. Each key has the word of
//! its flag. A new key is a line in `config/tables.rs`, which declares all of it, and its meaning
//! in `settings/settle.rs`.

mod files;
mod hints;
mod key;
pub(crate) mod schema;
pub(in crate::settings) mod source;
mod syntax;
mod tables;
mod tree;
mod value;
mod values;
mod words;

use clap::ArgMatches;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Spanned;

pub(super) use files::Sources;
pub(crate) use key::{Key, Table};
pub(crate) use tables::*;
pub(crate) use tree::Environment;
pub(crate) use value::{List, Value, Word};
pub(super) use value::{all, or, parsed};
pub(crate) use values::{
    ClientVerifyArg, ClientsArg, KindArg, KtlsArg, LogLevelArg, OnOffArg, PrivateArg, RuleArg, StartTlsArg, TlsMinArg,
    UnknownNameArg, admin_path,
};
pub(crate) use words::*;

/// The tables of all files.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) log: Log,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) timeouts: Timeouts,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) limits: Limits,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) engine: Engine,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) admin: Admin,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) acme: Acme,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) defaults: Defaults,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<User>")]
    pub(super) user: Vec<Spanned<User>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Client>")]
    pub(super) client: Vec<Spanned<Client>>,
    #[schemars(with = "Vec<Service>")]
    pub(crate) service: Vec<Spanned<Service>>,
}

/// What services and users have in common, unless they say otherwise.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table [defaults.listen], [defaults.dial] or [defaults.user]"
)]
pub(super) struct Defaults {
    #[serde(skip_serializing_if = "is_default")]
    pub(super) listen: ListenDefaults,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) dial: DialDefaults,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) user: UserDefaults,
}

impl Config {
    /// Takes the values of the flags of one service.
    pub(crate) fn take(matches: &mut ArgMatches) -> Self {
        let (mut config, mut service) = (Self::default(), Service::default());
        config.log.take(matches);
        config.timeouts.take(matches);
        config.limits.take(matches);
        config.engine.take(matches);
        config.admin.take(matches);
        config.acme.take(matches);
        config.defaults.user.take(matches);
        service.take(matches);
        config.service.push(Spanned::new(0..0, service));
        config
    }

    /// Returns the configuration without the tables of users, which may be many.
    pub(crate) fn without_users(self) -> Self {
        Self {
            user: Vec::new(),
            client: Vec::new(),
            ..self
        }
    }

    /// Returns the keys that differ and cannot change at run time.
    pub(crate) fn fixed_differences(&self, other: &Self) -> Vec<&'static str> {
        let log = self.log.fixed_differences(&other.log);
        let limits = self.limits.fixed_differences(&other.limits);
        let engine = self.engine.fixed_differences(&other.engine);
        log.chain(limits)
            .chain(engine)
            .chain(self.admin.fixed_differences(&other.admin))
            .chain(self.acme.fixed_differences(&other.acme))
            .collect()
    }
}

impl Service {
    /// Takes what the service does not say from the defaults.
    pub(super) fn or(mut self, defaults: &Defaults) -> Self {
        let Defaults { listen, dial, user: _ } = defaults;
        listen.fill(&mut self);
        // The operator has chosen the target of a forwarder.
        let is_forward = self.kind.as_ref().is_some_and(|kind| kind.parsed() == KindArg::Forward);
        let rules = (self.to_allow.clone(), self.to_deny.clone());
        dial.fill(&mut self);
        if is_forward {
            (self.to_allow, self.to_deny) = rules;
        }
        self
    }
}

fn is_default<T: Default + PartialEq>(table: &T) -> bool {
    *table == T::default()
}
