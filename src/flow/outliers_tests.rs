use std::time::Duration;

use prometheus::Registry;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;
use crate::endpoints::health::{Failure, HealthParams, OutlierMetrics};
use crate::endpoints::{Clock, EndpointSpec, ROLE_LABEL, Store};

struct Pool {
    clock: Clock,
    store: Store,
    outlier_filter: OutlierFilter,
}

impl Pool {
    /// Endpoints with these values of the role label; an empty one is none.
    fn new(roles: &[&str]) -> Self {
        let clock = Clock::stopped();
        let metrics = OutlierMetrics::register(&Registry::new()).unwrap();
        let outliers = Arc::new(OutlierDetector::new(HealthParams::default(), clock.clone(), metrics));
        let store = Store::watched(Arc::clone(&outliers));
        let spec = |(index, role): (usize, &&str)| {
            let mut spec = EndpointSpec::new(format!("pod-{index}"), ([10, 0, 0, index as u8], 8000));
            spec.labels =
                (!role.is_empty()).then(|| (ROLE_LABEL.to_owned(), (*role).to_owned())).into_iter().collect();
            spec
        };
        store.replace(roles.iter().enumerate().map(spec).collect());
        Self { clock, store, outlier_filter: OutlierFilter::new(outliers) }
    }

    fn all(&self) -> Candidates {
        self.store.snapshot().all()
    }

    fn eject(&self, index: u32) {
        let snapshot = self.store.snapshot();
        let health = snapshot.endpoints()[index as usize].health();
        (0..3).for_each(|_| health.failed(Failure::Elsewhere, self.clock.now_ms()));
    }

    /// Positions of the endpoints that may be picked; `None`: all.
    fn healthy(&self) -> Option<Vec<u32>> {
        let choice = self.choice(&self.all(), false, &mut StdRng::seed_from_u64(1))?;
        Some(choice.healthy.indices().to_vec())
    }

    /// Positions among whom a request is decided that is too much for the healthy, and of how many such requests.
    fn relief(&self, of: usize) -> Vec<Vec<u32>> {
        let mut rng = StdRng::seed_from_u64(1);
        let choices = (0..of).filter_map(|_| self.choice(&self.all(), false, &mut rng)?.relief);
        choices.map(|relief| relief.indices().to_vec()).collect()
    }

    fn choice(&self, all: &Candidates, probes: bool, rng: &mut StdRng) -> Option<Choice> {
        self.outlier_filter.choice(all, true, probes, self.clock.now_ms(), rng)
    }

    /// The endpoint that is probed, and among whom.
    fn attempt(&self) -> Option<(u32, Vec<u32>)> {
        let choice = self.choice(&self.all(), true, &mut StdRng::seed_from_u64(1))?;
        let attempt = choice.attempt?;
        drop(attempt.probe.used());
        Some((attempt.position, attempt.among.indices().to_vec()))
    }
}

#[test]
fn healthy_endpoints_get_two_shares_at_most() {
    let pool = Pool::new(&[""; 4]);
    assert_eq!(pool.healthy(), None);
    pool.eject(1);
    assert_eq!(pool.healthy(), Some(vec![0, 2, 3]));
    pool.eject(3);
    assert_eq!(pool.healthy(), Some(vec![0, 2]));
    assert!(pool.relief(100).is_empty(), "half of four have two shares each");
    pool.eject(0);
    assert_eq!(pool.healthy(), Some(vec![2]));
    let relief = pool.relief(6000);
    assert!((2700..3300).contains(&relief.len()), "{} are not half", relief.len());
    for position in [0, 1, 3] {
        let count = relief.iter().filter(|among| **among == [position]).count();
        assert!((850..1150).contains(&count), "{count} are not a sixth");
    }
    pool.eject(2);
    assert_eq!(pool.healthy(), Some(vec![0, 1, 2, 3]));
    assert_eq!(pool.relief(100).len(), 100, "each goes to one that is ejected");
}

#[test]
fn relief_adds_ejected_endpoints_of_the_short_role() {
    let pool = Pool::new(&["prefill", "prefill", "decode", "decode", "decode"]);
    pool.eject(2);
    pool.eject(3);
    let relief = pool.relief(300);
    assert!(relief.contains(&vec![0, 1, 2]) && relief.contains(&vec![0, 1, 3]));
    assert!(relief.iter().all(|among| among.len() == 3 && *among != [0, 1, 4]), "{relief:?}");
    pool.eject(0);
    pool.eject(1);
    let relief = pool.relief(300);
    assert_eq!(relief.len(), 300, "nobody is left that computes prompts");
    assert!(relief.contains(&vec![0, 3]) && relief.contains(&vec![1, 4]), "{relief:?}");
}

#[test]
fn refusing_endpoints_get_no_relief_requests() {
    let pool = Pool::new(&[""; 3]);
    let refuse = |index: usize| {
        let health = Arc::clone(pool.store.snapshot().endpoints()[index].health());
        health.scrape_succeeded();
        (0..3).for_each(|_| health.scrape_failed(true));
        assert!(health.is_ejected());
    };
    refuse(0);
    refuse(1);
    assert!(pool.relief(100).is_empty(), "two of three are no longer there");
    pool.eject(2);
    assert!(pool.relief(100).iter().all(|among| *among == [2]));
    pool.store.replace(vec![EndpointSpec::new("new", ([10, 0, 1, 0], 8000))]);
    refuse(0);
    assert_eq!(pool.relief(100).len(), 100, "it may listen again by now");
}

#[test]
fn cached_healthy_set_follows_recoveries_and_the_pool() {
    let pool = Pool::new(&[""; 3]);
    pool.eject(0);
    assert_eq!(pool.healthy(), Some(vec![1, 2]));
    let snapshot = pool.store.snapshot();
    for second in 1..=4 {
        pool.clock.set(Duration::from_secs(second));
        snapshot.endpoints()[0].health().succeeded(pool.clock.now_ms());
    }
    assert_eq!(pool.healthy(), None);
    pool.eject(2);
    assert_eq!(pool.healthy(), Some(vec![0, 1]));
    drop(snapshot);
    pool.store.replace(vec![EndpointSpec::new("pod-2", ([10, 0, 0, 2], 8000))]);
    assert_eq!(pool.healthy(), Some(vec![0]), "nobody else is there");
    pool.store.replace(Vec::new());
    assert!(!pool.outlier_filter.outliers.is_empty(), "the view holds it");
    pool.outlier_filter.sweep();
    assert!(pool.outlier_filter.outliers.is_empty());
}

#[test]
fn every_role_keeps_an_endpoint() {
    let pool = Pool::new(&["prefill", "prefill", "prefill", "prefill", "decode", "decode"]);
    pool.eject(4);
    assert_eq!(pool.healthy(), Some(vec![0, 1, 2, 3, 5]));
    pool.eject(5);
    assert_eq!(pool.healthy(), Some(vec![0, 1, 2, 3, 4, 5]), "nobody else decodes");
    pool.eject(0);
    assert_eq!(pool.healthy(), Some(vec![1, 2, 3, 4, 5]), "others compute prompts");
}

#[test]
fn probed_endpoint_replaces_all_others_of_its_role() {
    let pool = Pool::new(&["prefill", "decode", "decode", "both", "prefill", "unknown"]);
    pool.eject(1);
    assert_eq!(pool.attempt(), None, "not yet due");
    pool.clock.set(Duration::from_secs(1));
    assert_eq!(pool.attempt(), Some((1, vec![0, 1, 4, 5])));
    assert_eq!(pool.attempt(), None, "one at a time");
    let plain = Pool::new(&[""; 4]);
    plain.eject(2);
    plain.eject(0);
    plain.clock.set(Duration::from_secs(1));
    assert_eq!(plain.attempt(), Some((0, vec![0])));
    assert_eq!(plain.attempt(), Some((2, vec![2])), "each has a probe of its own");
    assert_eq!(plain.attempt(), None);
}

proptest! {
    /// Any ejections and failures: no healthy endpoint is left out, healthy ones do all that any can, and
    /// where more than half of those of a role are ejected, the others get two shares each.
    #[test]
    fn requests_are_shared_by_health(
        roles in prop::collection::vec(prop::sample::select(&["", "prefill", "decode", "both", "encode", "odd"][..]), 1..24),
        is_ejected in prop::collection::vec(any::<bool>(), 24),
        hint in prop::collection::vec(any::<bool>(), 24),
    ) {
        const REQUESTS: usize = 400;
        let pool = Pool::new(&roles);
        let ejected: Vec<u32> = (0..roles.len() as u32).filter(|index| is_ejected[*index as usize]).collect();
        ejected.iter().for_each(|index| pool.eject(*index));
        let members: Vec<u32> = (0..roles.len() as u32).filter(|index| hint[*index as usize]).collect();
        let all = pool.all().narrowed(&members);
        let mut rng = StdRng::seed_from_u64(1);
        let choices: Vec<_> = (0..REQUESTS).map(|_| pool.choice(&all, false, &mut rng)).collect();
        prop_assert_eq!(choices[0].is_some(), members.iter().any(|index| ejected.contains(index)));
        if choices[0].is_none() {
            return Ok(());
        }
        let among = |choice: &Option<Choice>| {
            let choice = choice.as_ref().unwrap();
            choice.relief.as_ref().unwrap_or(&choice.healthy).indices().to_vec()
        };
        let healthy = choices[0].as_ref().unwrap().healthy.indices().to_vec();
        let well: Vec<u32> = members.iter().copied().filter(|index| !ejected.contains(index)).collect();
        prop_assert!(well.iter().all(|index| healthy.contains(index)));
        for list in choices.iter().map(among).chain([healthy.clone()]) {
            prop_assert!(list.is_sorted() && list.iter().all(|index| members.contains(index)));
        }
        let snapshot = pool.store.snapshot();
        let of = |list: &[u32], part: u8| {
            let does = |index: &&u32| parts(&snapshot.endpoints()[**index as usize]) & part != 0;
            list.iter().filter(does).copied().collect::<Vec<u32>>()
        };
        for part in [1, 2, 4, 8].into_iter().filter(|part| !of(&members, *part).is_empty()) {
            let (all, well) = (of(&members, part), of(&well, part));
            prop_assert!(!of(&healthy, part).is_empty());
            let served = choices.iter().map(among).all(|among| !of(&among, part).is_empty());
            prop_assert!(served);
            if well.len() * 2 < all.len() {
                let failing: Vec<u32> = all.iter().copied().filter(|index| ejected.contains(index)).collect();
                let relieved = |among: &Vec<u32>| failing.iter().any(|index| among.contains(index));
                let share = choices.iter().map(among).filter(relieved).count() as f64 / REQUESTS as f64;
                let want = 1.0 - 2.0 * well.len() as f64 / all.len() as f64;
                // Six deviations; and where endpoints do several parts, each of these may need one.
                prop_assert!(share >= want - 0.15, "{} instead of {}", share, want);
                let does_one = |index: &u32| parts(&snapshot.endpoints()[*index as usize]).count_ones() == 1;
                prop_assert!(share <= want + 0.15 || !members.iter().all(does_one), "{} instead of {}", share, want);
                let tried = |index: &u32| choices.iter().any(|choice| among(choice).contains(index));
                prop_assert!(share < 0.3 || all.iter().all(tried), "each is tried");
            }
        }
    }
}
