//! What is wrong with the certificates of a configuration.

use spliceway_lab::doctor::{Mark, Note};

use crate::settings::TlsFiles;
use crate::tls::inspect::{Finding, Inspector, Subject, Verdict};

/// Checks the certificates of these services. Returns the name of each one, with its notes.
pub(super) fn sections(services: &[TlsFiles]) -> Vec<(String, Vec<Note>)> {
    let inspector = Inspector::new();
    let sections = services.iter().map(|service| {
        let server = service.server.iter().flat_map(|settings| inspector.clients(settings));
        let client = service.client.iter().flat_map(|settings| inspector.targets(settings));
        let fault = service.fault.iter();
        let fault = fault.map(|fault| ("the settings".to_owned(), vec![Finding::of_settings(fault.clone())]));
        let all = fault.chain(server).chain(client);
        let notes = all.flat_map(|(title, findings)| findings.into_iter().map(move |finding| note(&title, finding)));
        (service.service.clone(), notes.collect())
    });
    sections.collect()
}

fn note(title: &str, finding: Finding) -> Note {
    let mark = match finding.verdict {
        Verdict::Fine => Mark::Ok,
        Verdict::Doubtful => Mark::Warning,
        Verdict::Faulty => Mark::Fault,
    };
    let check = match finding.subject {
        Subject::Pair => "pair",
        Subject::Chain => "chain",
        Subject::Names => "names",
        Subject::Permissions => "permissions",
        Subject::Roots => "roots",
        Subject::Authorities => "target-ca",
        Subject::ClientCas => "client-ca",
        Subject::Crl => "crl",
        Subject::TicketKeys => "ticket-keys",
        Subject::Acme => "acme",
        Subject::Config => "config",
    };
    Note::new(mark, check, title, finding.text)
}
