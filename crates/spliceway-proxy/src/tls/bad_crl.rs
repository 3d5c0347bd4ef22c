//! Why a list of revoked certificates cannot be used, with the remedy.

use std::fmt::{self, Display, Formatter};

use webpki::Error;

use crate::kit::tls_error::words;

#[derive(Debug)]
pub(super) enum BadCrl {
    Damaged(String),
    Unsupported(String),
    NoNextUpdate,
}

impl From<Error> for BadCrl {
    fn from(error: Error) -> Self {
        match error {
            Error::UnsupportedCrlVersion
            | Error::UnsupportedDeltaCrl
            | Error::UnsupportedIndirectCrl
            | Error::UnsupportedCriticalExtension
            | Error::UnsupportedRevocationReason
            | Error::UnsupportedRevocationReasonsPartitioning
            | Error::UnsupportedCrlIssuingDistributionPoint => Self::Unsupported(words(&error)),
            error => Self::Damaged(words(&error)),
        }
    }
}

impl Display for BadCrl {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(why) => write!(
                f,
                "the list of revoked certificates is damaged ({why}): copy the file again, or get a new one of the CA"
            ),
            Self::Unsupported(why) => write!(
                f,
                "the list of revoked certificates cannot be used ({why}): expected a whole list of version 2 \
                 (RFC 5280), which OpenSSL writes with `crl_extensions`"
            ),
            Self::NoNextUpdate => f.write_str(
                "the list of revoked certificates has no time of the next update: OpenSSL writes one with `-crldays`",
            ),
        }
    }
}
