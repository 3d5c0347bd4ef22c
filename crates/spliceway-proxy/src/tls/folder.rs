//! The certificates in a folder, and what changes when a file does.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::certificate::{BadFile, PAIRS_MAX, PairFiles, Why};
use super::stamp::Stamp;

/// The ends of the names of files with a certificate.
const CERTIFICATES: [&str; 3] = ["pem", "crt", "cert"];
const KEY: &str = "key";

/// Returns the pairs in a folder, in the order of their names. A certificate is in `NAME.pem`,
/// `NAME.crt` or `NAME.cert`. Its key is in `NAME.key`, or in the same file.
///
/// # Errors
/// Returns an error if the folder cannot be read, has too many certificates, or has a key without a
/// certificate.
pub(super) fn pairs_in(folder: &Path) -> Result<Vec<PairFiles>, BadFile> {
    let files = files_in(folder).map_err(|error| BadFile::new(folder, Why::Read(error.into())))?;
    let ends_in = |ends: &'static [&str]| files.iter().filter(move |file| has_end(file, ends));
    let certificates = ends_in(&CERTIFICATES);
    let pairs: Vec<_> = certificates.map(|file| PairFiles::beside(file, &files)).collect();
    if pairs.len() > PAIRS_MAX {
        return Err(BadFile::new(folder, Why::TooMany));
    }
    let is_used = |key: &&PathBuf| CERTIFICATES.iter().any(|end| is_in(&files, &key.with_extension(end)));
    match ends_in(&[KEY]).find(|key| !is_used(key)) {
        Some(key) => Err(BadFile::new(key, Why::KeyAlone)),
        None => Ok(pairs),
    }
}

impl PairFiles {
    /// Returns the pair of this certificate, whose key may be in a file beside it.
    fn beside(certificate: &Path, files: &[PathBuf]) -> Self {
        let key = Some(certificate.with_extension(KEY)).filter(|key| is_in(files, key));
        Self {
            key: key.unwrap_or_else(|| certificate.to_owned()),
            certificate: certificate.to_owned(),
        }
    }
}

/// Returns whether sorted files have this one.
fn is_in(files: &[PathBuf], file: &PathBuf) -> bool {
    files.binary_search(file).is_ok()
}

/// Returns the files of a folder in the order of their names, without hidden ones.
fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if !name.as_encoded_bytes().starts_with(b".") {
            files.push(folder.join(name));
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn has_end(file: &Path, ends: &[&str]) -> bool {
    file.extension()
        .and_then(OsStr::to_str)
        .is_some_and(|end| ends.contains(&end))
}

/// The state of files, by which a change is noticed. Nothing is read for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stamps(Vec<(PathBuf, Stamp)>);

impl Stamps {
    /// Returns the state of these files, and of those in a folder.
    pub(super) fn of(files: impl Iterator<Item = PathBuf>, folder: Option<&Path>) -> Self {
        // A folder that cannot be read has no files. It changes when it can be read again.
        let in_folder = folder.and_then(|folder| files_in(folder).ok()).unwrap_or_default();
        let files = files.chain(in_folder);
        Self(
            files
                .map(|file| (Stamp::of(&file), file))
                .map(|(stamp, file)| (file, stamp))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::certificate::tests::Folder;

    /// Returns the names of the files of each pair, or the message without the name of the folder.
    fn pairs(names: &[&str]) -> Result<Vec<(String, String)>, String> {
        let folder = Folder::new();
        names.iter().for_each(|name| drop(folder.write(name, "")));
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let pairs = pairs_in(folder.path()).map_err(|bad| {
            let text = bad.to_string();
            text.replace(&format!("{}/", folder.path().display()), "")
        });
        pairs.map(|pairs| {
            pairs
                .iter()
                .map(|pair| (name(&pair.certificate), name(&pair.key)))
                .collect()
        })
    }

    #[test]
    fn pairs_have_the_order_of_their_names_and_a_key_beside_or_inside() {
        let names = [
            "b.pem",
            "a.crt",
            "a.key",
            "c.cert",
            "c.key",
            "a.txt",
            ".d.pem",
            "b.pem.ocsp",
        ];
        let expected = [("a.crt", "a.key"), ("b.pem", "b.pem"), ("c.cert", "c.key")];
        let expected = expected.map(|(certificate, key)| (certificate.to_owned(), key.to_owned()));
        assert_eq!(pairs(&names).unwrap(), expected);
        assert_eq!(pairs(&[]).unwrap(), []);
    }

    #[test]
    fn a_key_alone_and_a_folder_that_is_none_are_errors() {
        let error = pairs(&["a.crt", "a.key", "b.key"]).unwrap_err();
        assert!(
            error.starts_with("b.key is the key of no certificate: expected b.pem, b.crt or b.cert"),
            "{error}"
        );
        let error = pairs_in(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read /nonexistent: "), "{error}");
    }

    #[test]
    fn more_certificates_than_the_bound_are_refused() {
        let names: Vec<_> = (0..=PAIRS_MAX).map(|number| format!("{number}.pem")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert!(pairs(&names).unwrap_err().contains("has more than 10000 certificates"));
        assert_eq!(pairs(&names[1..]).unwrap().len(), PAIRS_MAX);
    }

    #[test]
    fn stamps_differ_when_a_file_comes_goes_or_changes() {
        let folder = Folder::new();
        let file = folder.write("a.pem", "1");
        let alone = Folder::new();
        let alone = alone.path().join("other");
        let stamps = || Stamps::of([alone.clone()].into_iter(), Some(folder.path()));
        let mut before = stamps();
        assert_eq!(stamps(), before);
        let mut differs = || {
            let now = stamps();
            let differs = now != before;
            before = now;
            differs
        };
        folder.write("a.pem", "two");
        assert!(differs());
        folder.write("b.key", "1");
        assert!(differs());
        fs::remove_file(file).unwrap();
        assert!(differs());
        assert!(!differs());
    }
}
