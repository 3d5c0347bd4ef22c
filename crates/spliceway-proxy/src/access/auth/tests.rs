use std::net::Ipv4Addr;
use std::time::Duration;

use super::hash::tests::text;
use super::*;

const CLIENT: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

fn credentials(name: &str, secret: &str) -> Credentials {
    Credentials {
        name: name.as_bytes().into(),
        secret: secret.as_bytes().into(),
    }
}

/// Hashes with the lowest cost that argon2 allows, because most tests are about the comparison and
/// not about the cost.
fn hashed(secret: &str) -> Stored {
    hashed_at(secret, 8, 1)
}

fn hashed_at(secret: &str, memory_kib: u32, passes: u32) -> Stored {
    Stored::Hash(Arc::new(Hash::parse(&text(secret, memory_kib, passes)).unwrap()))
}

fn clear(secret: &str) -> Stored {
    Stored::Clear(secret.as_bytes().into())
}

fn users(of: impl IntoIterator<Item = (&'static str, Stored)>) -> Users {
    Users::new(
        of.into_iter().map(|(name, stored)| (name.as_bytes().into(), stored)),
        [0; 32],
    )
    .unwrap()
}

/// Returns whether a login from [`CLIENT`] succeeds.
async fn passes(users: &Users, name: &str, secret: &str) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    let credentials = credentials(name, secret);
    let verified = users.verify(&credentials, CLIENT, Standing::Good, deadline).await;
    verified.unwrap().is_some()
}

/// Returns whether a login from [`CLIENT`] succeeds while this address has to wait.
fn passes_again(users: &Users, name: &str, secret: &str) -> bool {
    let proof = users.verify_again(&credentials(name, secret), CLIENT.unwrap(), Instant::now());
    proof.is_some()
}

#[tokio::test]
async fn only_a_name_with_its_own_secret_passes() {
    for stored in [clear, hashed] {
        let users = users([("ann", stored("a")), ("bob", stored("b"))]);
        for _ in 0..2 {
            assert!(passes(&users, "ann", "a").await);
            for (name, secret) in [
                ("ann", "b"),
                ("ann", ""),
                ("ann", "a\0"),
                ("carol", "a"),
                ("", ""),
                ("Ann", "a"),
            ] {
                assert!(!passes(&users, name, secret).await, "{name} {secret}");
            }
        }
    }
}

/// The password for an unknown name is checked against the hash of an existing user.
#[tokio::test]
async fn the_hash_that_unknown_names_are_checked_against_admits_none_of_them() {
    let users = users([("ann", clear("a")), ("bob", hashed("b"))]);
    assert!(!passes(&users, "carol", "b").await && !passes(&users, "ann", "b").await);
    assert!(passes(&users, "bob", "b").await);
    assert!(!passes(&users, "carol", "b").await, "nor once it has passed");
}

#[tokio::test]
async fn a_hash_is_checked_once_for_a_returning_user() {
    let users = users([("ann", hashed("a"))]);
    assert!(passes(&users, "ann", "a").await);
    // No password is checked after its deadline.
    for (secret, expected) in [("a", Some(true)), ("b", None)] {
        let (credentials, now) = (credentials("ann", secret), Instant::now());
        let verified = users.verify(&credentials, CLIENT, Standing::Good, now).await;
        assert_eq!(verified.ok().map(|proof| proof.is_some()), expected);
    }
}

#[test]
fn a_wrong_secret_costs_the_same_for_every_user_name() {
    let users = users([
        ("expensive", hashed_at("a", 64, 3)),
        ("cheap", hashed_at("b", 8, 1)),
        ("also cheap", hashed_at("c", 8, 1)),
        ("middling", hashed_at("d", 64, 1)),
        ("clear", clear("e")),
    ]);
    let costs = |name: &str| users.work(users.known.get(name.as_bytes()), b"wrong").costs();
    for name in ["expensive", "cheap", "also cheap", "middling", "clear", "nobody"] {
        assert_eq!(costs(name), costs("expensive"), "{name}");
    }
    assert_eq!(costs("nobody").len(), 3, "each cost once");
}

#[tokio::test]
async fn only_a_secret_that_has_passed_is_accepted_without_a_wait() {
    let users = users([("ann", hashed("a")), ("bob", clear("b"))]);
    assert!(!passes_again(&users, "ann", "a") && !users.has_passed_from(CLIENT.unwrap()));
    for (name, secret) in [("ann", "a"), ("bob", "b")] {
        assert!(!passes(&users, name, "wrong").await && !passes_again(&users, name, "wrong"));
        assert!(passes(&users, name, secret).await);
        assert!(passes_again(&users, name, secret) && !passes_again(&users, name, "wrong"));
        let elsewhere = users.verify_again(&credentials(name, secret), OTHER, Instant::now());
        assert!(elsewhere.is_none(), "it has passed here, not there");
    }
    assert!(!passes_again(&users, "ann", "b") && !passes_again(&users, "carol", "a"));
    assert!(users.has_passed_from(CLIENT.unwrap()) && !users.has_passed_from(OTHER));
}

/// The same happens if a file is read again: the remembered passwords are dropped with their users.
#[tokio::test]
async fn a_new_set_of_users_does_not_remember_passed_secrets() {
    let before = users([("ann", hashed("a"))]);
    assert!(passes(&before, "ann", "a").await && passes_again(&before, "ann", "a"));
    let after = users([("ann", hashed("b"))]);
    assert!(!passes_again(&after, "ann", "a") && !passes(&after, "ann", "a").await);
}

#[tokio::test]
async fn a_printed_hash_verifies_and_contains_its_parameters() {
    let text = hash(b"correct horse").unwrap();
    assert!(text.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{text}");
    let users = users([("ann", Stored::Hash(Arc::new(Hash::parse(&text).unwrap())))]);
    assert!(passes(&users, "ann", "correct horse").await);
}

#[test]
fn debug_output_contains_no_secret() {
    let users = users([("ann", clear("s3cret"))]);
    assert_eq!(format!("{users:?}"), "Users { count: 1, .. }");
}
