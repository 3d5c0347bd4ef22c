//! One order of a certificate.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::time::Duration;

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, RetryPolicy, RevocationRequest,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::pki_types::CertificateDer;

use super::folder::Locked;
use super::https::Https;
use super::settings::AcmeSettings;
use crate::kit::harmless::reason;

/// Looks at an order after 250 ms, and then after twice the time before.
const POLLING: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));
/// The type of the problem that a server reports if a certificate was revoked before.
const REVOKED: &str = "urn:ietf:params:acme:error:alreadyRevoked";
/// The type of the problem that a server reports if it has forgotten an account.
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// Why there is no certificate.
#[derive(Debug)]
pub(super) enum OrderError {
    Server(instant_acme::Error),
    /// The server offers no challenge of the kind that this program can answer.
    NoChallenge(&'static str),
    /// The server could not validate the name.
    Invalid(String),
    Folder(io::Error),
    Request(rcgen::Error),
}

/// Orders a certificate for a name. Returns its key and its chain, in PEM.
pub(super) async fn order(
    settings: &AcmeSettings,
    locked: &Locked,
    name: &str,
    https: &Https,
) -> Result<String, OrderError> {
    let account = account(settings, locked, https).await?;
    let identifiers = [Identifier::Dns(name.to_owned())];
    let order = account.new_order(&NewOrder::new(&identifiers)).await;
    let mut order = match order {
        Err(instant_acme::Error::Api(problem)) if problem.r#type.as_deref() == Some(NO_ACCOUNT) => {
            // The next try creates another account.
            settings.folder.forget_account(locked)?;
            return Err(instant_acme::Error::Api(problem).into());
        }
        order => order?,
    };
    answer_challenges(settings, locked, name, &mut order).await?;
    let status = match order.poll_ready(&POLLING).await {
        // The error of an order says less than that of its challenge.
        Err(instant_acme::Error::Api(problem)) => Err(problem.to_string()),
        status => Ok(status?),
    };
    if status.as_ref() != Ok(&OrderStatus::Ready) {
        let why = why_invalid(&mut order).await;
        let other = status.err().unwrap_or_else(|| "the server does not say why".to_owned());
        return Err(OrderError::Invalid(why.unwrap_or(other)));
    }
    let key = KeyPair::generate()?;
    let mut request = CertificateParams::new([name.to_owned()])?;
    request.distinguished_name = DistinguishedName::new();
    order.finalize_csr(request.serialize_request(&key)?.der()).await?;
    let chain = order.poll_certificate(&POLLING).await?;
    Ok(key.serialize_pem() + &chain)
}

/// Revokes a certificate that the account has ordered.
pub(super) async fn revoke(
    settings: &AcmeSettings,
    locked: &Locked,
    certificate: &CertificateDer<'_>,
    https: &Https,
) -> Result<(), OrderError> {
    let account = account(settings, locked, https).await?;
    let request = RevocationRequest {
        certificate,
        reason: None,
    };
    match account.revoke(&request).await {
        Err(instant_acme::Error::Api(problem)) if problem.r#type.as_deref() == Some(REVOKED) => Ok(()),
        revoked => Ok(revoked?),
    }
}

/// Returns the account of the folder, or creates it.
async fn account(settings: &AcmeSettings, locked: &Locked, https: &Https) -> Result<Account, OrderError> {
    let builder = Account::builder_with_http(Box::new(https.clone()));
    if let Some(text) = settings.folder.account()?
        && let Ok(credentials) = serde_json::from_str::<AccountCredentials>(&text)
    {
        return Ok(builder.from_credentials(credentials).await?);
    }
    let contact = settings.email.as_ref().map(|email| format!("mailto:{email}"));
    let contact: Vec<_> = contact.as_deref().into_iter().collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let (account, credentials) = builder.create(&new, settings.directory.clone(), None).await?;
    let text = serde_json::to_string(&credentials).map_err(io::Error::other)?;
    settings.folder.set_account(locked, &text)?;
    Ok(account)
}

/// Prepares the answers, and asks the server to validate the name.
async fn answer_challenges(
    settings: &AcmeSettings,
    locked: &Locked,
    name: &str,
    order: &mut Order,
) -> Result<(), OrderError> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status != AuthorizationStatus::Pending {
            continue;
        }
        let (kind, text) = if settings.uses_http {
            (ChallengeType::Http01, "http-01")
        } else {
            (ChallengeType::TlsAlpn01, "tls-alpn-01")
        };
        let challenge = authorization.challenge(kind);
        let mut challenge = challenge.ok_or(OrderError::NoChallenge(text))?;
        let answer = challenge.key_authorization();
        if settings.uses_http {
            settings.folder.set_answer(locked, &challenge.token, answer.as_str())?;
        } else {
            settings.folder.set_challenge(locked, name, answer.as_str())?;
        }
        challenge.set_ready().await?;
    }
    Ok(())
}

/// Returns the error of a challenge that failed.
async fn why_invalid(order: &mut Order) -> Option<String> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let state = authorization.refresh().await.ok()?;
        if let Some(problem) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            return Some(problem.to_string());
        }
    }
    None
}

impl From<instant_acme::Error> for OrderError {
    fn from(error: instant_acme::Error) -> Self {
        Self::Server(error)
    }
}

impl From<io::Error> for OrderError {
    fn from(error: io::Error) -> Self {
        Self::Folder(error)
    }
}

impl From<rcgen::Error> for OrderError {
    fn from(error: rcgen::Error) -> Self {
        Self::Request(error)
    }
}

impl Display for OrderError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(error) => f.write_str(&reason(&error.to_string())),
            Self::NoChallenge(kind) => write!(f, "the server does not offer the challenge {kind}"),
            Self::Invalid(why) => write!(f, "the server could not validate the name: {}", reason(why)),
            Self::Folder(error) => write!(f, "cannot write to the folder of acme: {error}"),
            Self::Request(error) => write!(f, "cannot make the request: {error}"),
        }
    }
}
