//! Chooses a certificate by the name that a client states.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::certificate::{Pair, Validity};

/// The certificates of a listener.
#[derive(Debug)]
pub(crate) struct Pairs {
    /// In the operator's order. There is at least one, except before ACME has issued the first.
    pairs: Vec<Pair>,
    /// The positions of the pairs that have a name. Several pairs may have the same name, with keys
    /// of different types.
    by_name: HashMap<Box<str>, Vec<usize>>,
    /// The positions for a client without a known name: the first pair, and those that share its
    /// first name.
    default: Vec<usize>,
}

impl Pairs {
    pub(super) fn new(pairs: Vec<Pair>) -> Self {
        let mut by_name = HashMap::<_, Vec<_>>::new();
        for (position, pair) in pairs.iter().enumerate() {
            for name in &pair.names {
                by_name.entry(name.clone()).or_default().push(position);
            }
        }
        let default = match pairs.first().map(|pair| pair.names.first()) {
            Some(Some(name)) => by_name[name].clone(),
            Some(None) => vec![0],
            None => Vec::new(),
        };
        Self {
            pairs,
            by_name,
            default,
        }
    }

    pub(crate) fn all(&self) -> &[Pair] {
        &self.pairs
    }

    /// Returns when the first certificate for exactly this name is valid.
    pub(crate) fn validity(&self, name: &str) -> Option<Validity> {
        let position = *self.by_name.get(name)?.first()?;
        Some(self.pairs[position].valid)
    }

    /// Returns whether a certificate has this name, itself or by a wildcard.
    pub(crate) fn know(&self, name: &str) -> bool {
        self.pairs_for(name).is_some()
    }

    /// Returns the positions of the pairs for a name. A certificate with the name itself goes
    /// before one with a wildcard.
    fn pairs_for(&self, name: &str) -> Option<&[usize]> {
        let name = name.to_ascii_lowercase();
        let exact = self.by_name.get(name.as_str());
        let found = exact.or_else(|| {
            // A wildcard stands for one label.
            let (_, parent) = name.split_once('.')?;
            self.by_name.get(format!("*.{parent}").as_str())
        });
        found.map(Vec::as_slice)
    }

    /// Returns the pair for a client. A client without a name gets the first pair, and so does one
    /// with an unknown name. If there are several, the first one whose key the client can verify is
    /// chosen. Returns `None` if there is no pair at all.
    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<&Pair> {
        let candidates = name.and_then(|name| self.pairs_for(name)).unwrap_or(&self.default);
        let fits = |position: &&usize| self.pairs[**position].key.key.choose_scheme(schemes).is_some();
        let position = candidates.iter().find(fits).or(candidates.first())?;
        Some(&self.pairs[*position])
    }
}

impl ResolvesServerCert for Pairs {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let pair = self.choose(hello.server_name(), hello.signature_schemes())?;
        Some(Arc::clone(pair.to_send(SystemTime::now())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::certificate::tests::{made, made_with};
    use rcgen::{PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

    const ANY: &[SignatureScheme] = &[
        SignatureScheme::ECDSA_NISTP256_SHA256,
        SignatureScheme::ECDSA_NISTP384_SHA384,
        SignatureScheme::ED25519,
    ];

    #[test]
    fn a_name_goes_before_a_wildcard_and_a_wildcard_before_the_first() {
        let pairs = Pairs::new(vec![
            made(&["first.test"]),
            made(&["*.example.test"]),
            made(&["WWW.example.test", "example.test"]),
        ]);
        for (name, expected) in [
            (None, 0),
            (Some("first.test"), 0),
            (Some("a.example.test"), 1),
            (Some("www.example.test"), 2),
            (Some("wWw.Example.test"), 2),
            (Some("example.test"), 2),
            (Some("a.b.example.test"), 0),
            (Some("unknown.test"), 0),
        ] {
            let chosen = pairs.choose(name, ANY).unwrap();
            assert!(Arc::ptr_eq(&chosen.key, &pairs.pairs[expected].key), "{name:?}");
        }
        assert!(pairs.know("a.example.test") && !pairs.know("a.b.example.test") && !pairs.know("test"));
    }

    #[test]
    fn of_two_keys_for_a_name_the_client_gets_one_that_it_can_verify() {
        let pairs = Pairs::new(vec![
            made_with(&["a.test"], &PKCS_ED25519),
            made_with(&["a.test"], &PKCS_ECDSA_P384_SHA384),
        ]);
        let chosen = pairs
            .choose(Some("a.test"), &[SignatureScheme::ECDSA_NISTP384_SHA384])
            .unwrap();
        assert!(Arc::ptr_eq(&chosen.key, &pairs.pairs[1].key));
        let chosen = pairs.choose(Some("a.test"), ANY).unwrap();
        assert!(Arc::ptr_eq(&chosen.key, &pairs.pairs[0].key));
    }
}
