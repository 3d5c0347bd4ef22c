//! Whether each address can be listened on.

use std::io;

use rustix::io::Errno;
use spliceway_lab::doctor::{Mark, Note};
use spliceway_protocol::address::{ListenAddress, ListenRange};

use crate::net::holder::{Holder, holder};
use crate::net::listener::{Transport, try_out};
use crate::settings::{Purpose, Settings};

const CHECK: &str = "listen";

/// Tries every address of the services and of the operator, without listening there.
pub(super) async fn notes(settings: &Settings) -> Vec<Note> {
    let mut notes = Vec::new();
    for service in &settings.services {
        for (range, purpose) in service.listeners() {
            let (title, is_behind_tproxy) = match purpose {
                Purpose::Sessions(_) => ("", service.kind.is_behind_tproxy()),
                Purpose::Dns(Transport::Datagrams) => (" for DNS by UDP", false),
                Purpose::Dns(Transport::Streams) => (" for DNS", false),
            };
            let title = |address: &str| format!("{} on {address}{title}", service.name);
            notes.extend(of_range(&range, purpose.transport(), is_behind_tproxy, title).await);
        }
    }
    let remote = settings.remote_admin.as_ref().map(|(address, _)| address);
    let acme = settings.acme_http.as_ref().map(|(address, _)| address);
    for (name, address) in [
        ("metrics", settings.metrics.as_ref()),
        ("the admin socket", settings.admin.as_ref()),
        ("the admin socket for tokens", remote),
        ("ACME", acme),
    ] {
        if let Some(address) = address {
            let title = |address: &str| format!("{name} on {address}");
            notes.extend(of_range(&address.clone().into(), Transport::Streams, false, title).await);
        }
    }
    notes
}

/// Returns one note for the ports of a range of which the same is true.
async fn of_range(
    range: &ListenRange,
    transport: Transport,
    is_behind_tproxy: bool,
    title: impl Fn(&str) -> String,
) -> Vec<Note> {
    /// The first address, the number of addresses, and the note.
    type Group = (ListenAddress, usize, Note);
    let mut groups: Vec<Group> = Vec::new();
    for address in range.iter() {
        let tried = match try_out(&address, transport, is_behind_tproxy).await {
            Ok(()) if matches!(address, ListenAddress::Inherited(_)) => Note::new(
                Mark::Remark,
                CHECK,
                "",
                "not tried, because the service manager opens it",
            ),
            Ok(()) => Note::new(Mark::Ok, CHECK, "", "free"),
            Err(error) => failed(&address, transport, &error),
        };
        match groups.last_mut() {
            Some((_, count, note)) if *note == tried => *count += 1,
            _ => groups.push((address, 1, tried)),
        }
    }
    let notes = groups.into_iter().map(|(address, count, note)| {
        let more = match count {
            1 => String::new(),
            2 => " and the next port".to_owned(),
            _ => format!(" and the next {} ports", count - 1),
        };
        Note {
            title: title(&format!("{address}{more}")),
            ..note
        }
    });
    notes.collect()
}

fn failed(address: &ListenAddress, transport: Transport, error: &io::Error) -> Note {
    let fault = |text: String| Note::new(Mark::Fault, CHECK, "", text);
    if error.kind() == io::ErrorKind::AddrInUse {
        return in_use(holder(address, transport == Transport::Datagrams));
    }
    let note = fault(format!("cannot be opened: {error}"));
    match (address, Errno::from_io_error(error)) {
        (ListenAddress::Unix { .. }, Some(Errno::ACCESS)) => {
            note.advise("give this user the right to write into the folder")
        }
        (ListenAddress::Unix { .. }, Some(Errno::NOENT)) => {
            note.advise("create the folder (RuntimeDirectory= of a unit)")
        }
        (ListenAddress::Unix { .. }, None) => note.advise("choose another path, or remove the file"),
        (_, Some(Errno::ACCESS)) => note.advise(
            "use a port of 1024 or more, or give the capability \
             (AmbientCapabilities=CAP_NET_BIND_SERVICE of a unit)",
        ),
        (_, Some(Errno::ADDRNOTAVAIL)) => {
            note.advise("use an address of this machine (`ip address` lists them), or `:PORT` for all of them")
        }
        (ListenAddress::Name(..), None) => note.advise("correct the name, or use an address"),
        _ => note,
    }
}

fn in_use(holder: Holder) -> Note {
    let in_use = |mark| Note::new(mark, CHECK, "", format!("in use by {holder}"));
    match holder {
        Holder::Instance(_) => in_use(Mark::Remark)
            .advise("`spliceway reload` gives it this configuration; a second instance needs another address"),
        Holder::Other { .. } => in_use(Mark::Fault).advise("stop that program, or choose another address"),
        Holder::UnknownBesideInstance(_) => in_use(Mark::Warning).advise("run this check as root to see which process"),
        Holder::Unknown => {
            in_use(Mark::Fault).advise("run this check as root to see which process, or choose another address")
        }
    }
}
