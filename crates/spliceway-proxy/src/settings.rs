//! The settings of the program. They are checked and complete, whatever their source.

mod acme;
mod admin;
mod ahead;
mod backends;
mod chains;
mod change;
mod clients;
pub(crate) mod config;
mod distinct;
pub(crate) mod exposure;
mod faults;
pub(crate) mod given;
mod hidden;
mod kind;
mod origin;
mod program;
mod service;
mod settle;
mod target_tls;
mod targets;
mod tls;
mod tls_files;
mod udp;
mod user_limits;
mod users;

pub(crate) use change::{Change, Changed, Condition, Edit, FileChange, Place, Refused, Shown};
pub(crate) use given::Given;
pub(crate) use origin::Origin;
pub(crate) use program::{SessionSettings, Settings};
pub(crate) use service::{AcceptProxy, HostUsers, Kind, MirrorSettings, Naming, Purpose, ServiceSettings, UserTargets};
#[cfg(test)]
pub(crate) use settle::Depth;
pub(crate) use settle::{Source, check, settle};
pub(crate) use tls_files::{TlsFiles, tls_files};
