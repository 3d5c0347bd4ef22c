use super::*;

const PICKS: u64 = 100_000;

/// Random numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 += 1;
        mixed(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % below
    }
}

fn candidates(weights: &[u32]) -> Vec<Candidate> {
    let candidate = |(index, weight): (usize, &u32)| Candidate {
        weight: *weight,
        active: 0,
        hash: mixed(1_000_000 + index as u64),
        credit: 0,
    };
    weights.iter().enumerate().map(candidate).collect()
}

/// Makes the picks with `open` sessions open at any time. Each new session takes the place of a
/// random one, so sessions differ in length. Returns the picks of each candidate.
fn picks(policy: Policy, weights: &[u32], open: usize) -> Vec<u64> {
    let (mut candidates, mut random) = (candidates(weights), Random(1));
    let (mut sessions, mut picked) = (Vec::new(), vec![0; weights.len()]);
    for client in 0..PICKS {
        let client = mixed(client);
        let index = policy
            .choose(&mut candidates, Some(client), &mut |below| random.below(below))
            .unwrap();
        picked[index] += 1;
        candidates[index].active += 1;
        sessions.push(index);
        if sessions.len() > open {
            let ended = random.below(sessions.len() as u64);
            candidates[sessions.swap_remove(ended as usize)].active -= 1;
        }
    }
    picked
}

/// Asserts that each share of the picks differs from that of the weight by at most this many per
/// cent of it.
fn assert_shares(picked: &[u64], weights: &[u32], percent: f64, what: &str) {
    let all: u32 = weights.iter().sum();
    for (picked, weight) in picked.iter().zip(weights) {
        let expected = PICKS as f64 * f64::from(*weight) / f64::from(all);
        let error = 100.0 * (*picked as f64 - expected).abs() / expected;
        assert!(error <= percent, "{what}: {picked} of {expected}, {error:.2} %");
    }
}

const WEIGHTS: [&[u32]; 4] = [&[1, 1, 1, 1], &[1, 2, 3, 4], &[5, 1, 1], &[256, 1]];

#[test]
fn round_robin_is_exact_and_smooth() {
    for weights in WEIGHTS {
        let picked = picks(Policy::RoundRobin, weights, 100);
        let all: u32 = weights.iter().sum();
        for (picked, weight) in picked.iter().zip(weights) {
            let expected = PICKS * u64::from(*weight) / u64::from(all);
            assert!(picked.abs_diff(expected) <= 1, "{weights:?}: {picked} of {expected}");
        }
    }
    let (mut candidates, mut order) = (candidates(&[5, 1, 1]), String::new());
    for _ in 0..7 {
        order += &turn(&mut candidates, |_| true).unwrap().to_string();
    }
    assert_eq!(order, "0010200", "as nginx");
}

#[test]
fn least_conn_spreads_sessions_by_weight_within_three_percent() {
    for weights in &WEIGHTS[..3] {
        for open in [0, 1000] {
            let picked = picks(Policy::LeastConn, weights, open);
            assert_shares(&picked, weights, 3.0, &format!("{weights:?}, {open} open"));
        }
    }
}

#[test]
fn p2c_spreads_sessions_by_weight_within_three_percent() {
    for weights in &WEIGHTS[..3] {
        for open in [0, 1000] {
            let picked = picks(Policy::P2c, weights, open);
            assert_shares(&picked, weights, 3.0, &format!("{weights:?}, {open} open"));
        }
    }
}

#[test]
fn source_hash_spreads_clients_by_weight_within_four_percent() {
    for weights in [&[1; 10][..], &[1, 2, 3, 4], &[5, 1, 1]] {
        let picked = picks(Policy::SourceHash, weights, 0);
        assert_shares(&picked, weights, 4.0, &format!("{weights:?}"));
    }
}

#[test]
fn first_takes_the_first_one() {
    assert_eq!(picks(Policy::First, &[1, 100], 10), [PICKS, 0]);
}

#[test]
fn no_policy_chooses_from_nothing() {
    for policy in Policy::value_variants() {
        assert_eq!(policy.choose(&mut [], Some(1), &mut |_| 0), None);
    }
}

/// If one of ten backends leaves, 10 % of the clients move, within 4 % of that, and no others.
#[test]
fn a_backend_that_leaves_moves_only_its_own_clients() {
    let all = candidates(&[1; 10]);
    for left in [0, 9] {
        let mut fewer = all.clone();
        fewer.remove(left);
        let mut moved = 0_u64;
        for client in (0..PICKS).map(mixed) {
            let before = by_hash(&all, client).unwrap();
            let after = by_hash(&fewer, client).unwrap();
            let after = after + usize::from(after >= left);
            match before == left {
                true => moved += 1,
                false => assert_eq!(before, after),
            }
        }
        assert!(moved.abs_diff(PICKS / 10) <= PICKS / 250, "{moved} of {PICKS} moved");
    }
}

#[test]
fn one_client_fills_a_backend_up_to_its_bound_and_then_the_others() {
    let mut candidates = candidates(&[1, 1, 2]);
    let client = mixed(7);
    let own = by_hash(&candidates, client).unwrap();
    for sessions in 1..=10_000_u64 {
        let index = by_hash(&candidates, client).unwrap();
        candidates[index].active += 1;
        if sessions <= LOAD_FLOOR {
            assert_eq!(index, own, "a few sessions stay together");
        }
        for one in &candidates {
            let bound = (5 * sessions * u64::from(one.weight)).div_ceil(4 * 4).max(LOAD_FLOOR);
            assert!(u64::from(one.active) <= bound, "{candidates:?}");
        }
    }
}

#[test]
fn a_client_without_an_address_gets_the_least_loaded_backend() {
    let mut candidates = candidates(&[1, 1]);
    candidates[0].active = 1;
    let chosen = Policy::SourceHash.choose(&mut candidates, None, &mut |_| 0);
    assert_eq!(chosen, Some(1));
}

/// The numbers are part of the contract between instances and between versions.
#[test]
fn a_hash_never_changes() {
    assert_eq!(mixed(1), 0x5692_161d_100b_05e5);
    assert_eq!(mixed(u64::MAX), 0xb4d0_55fc_f2cb_bd7b);
}
