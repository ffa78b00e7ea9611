use std::time::Duration;

use prometheus::Registry;
use proptest::prelude::*;

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
        let choice = self.outlier_filter.choice(&self.all(), true, false, self.clock.now_ms())?;
        Some(choice.healthy.indices().to_vec())
    }

    /// The endpoint that is probed, and among whom.
    fn attempt(&self) -> Option<(u32, Vec<u32>)> {
        let choice = self.outlier_filter.choice(&self.all(), true, true, self.clock.now_ms())?;
        let attempt = choice.attempt?;
        drop(attempt.probe.used());
        Some((attempt.position, attempt.among.indices().to_vec()))
    }
}

#[test]
fn ejected_endpoints_are_left_out_up_to_half() {
    let pool = Pool::new(&[""; 4]);
    assert_eq!(pool.healthy(), None);
    pool.eject(1);
    assert_eq!(pool.healthy(), Some(vec![0, 2, 3]));
    pool.eject(3);
    assert_eq!(pool.healthy(), Some(vec![0, 2]));
    pool.eject(0);
    assert_eq!(pool.healthy(), None, "then all are used");
    assert_eq!(pool.attempt(), None, "and every request is a probe");
    assert_eq!(pool.outlier_filter.outliers.metrics().overruled.get(), 2);
}

#[test]
fn what_is_known_of_a_view_follows_recoveries_and_the_pool() {
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
    assert_eq!(pool.healthy(), None, "one of one is more than half");
    pool.store.replace(Vec::new());
    assert!(!pool.outlier_filter.outliers.is_empty(), "the view holds it");
    pool.outlier_filter.sweep();
    assert!(pool.outlier_filter.outliers.is_empty());
}

#[test]
fn no_part_of_the_work_is_left_to_less_than_half() {
    let pool = Pool::new(&["prefill", "prefill", "prefill", "prefill", "decode", "decode"]);
    pool.eject(4);
    assert_eq!(pool.healthy(), Some(vec![0, 1, 2, 3, 5]));
    pool.eject(5);
    assert_eq!(pool.healthy(), None, "both that decode are needed");
    pool.eject(0);
    assert_eq!(pool.healthy(), Some(vec![1, 2, 3, 4, 5]), "of those that prefill one is not");
}

#[test]
fn the_endpoint_that_is_due_has_its_part_of_the_work_alone() {
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
    /// Whoever is ejected and whatever they do: at most half of all is left out, at most
    /// half of those of any role, and nobody who is well.
    #[test]
    fn never_more_than_half_is_left_out(
        roles in prop::collection::vec(prop::sample::select(&["", "prefill", "decode", "both", "encode", "odd"][..]), 1..24),
        is_ejected in prop::collection::vec(any::<bool>(), 24),
        hint in prop::collection::vec(any::<bool>(), 24),
    ) {
        let pool = Pool::new(&roles);
        let ejected: Vec<u32> = (0..roles.len() as u32).filter(|index| is_ejected[*index as usize]).collect();
        ejected.iter().for_each(|index| pool.eject(*index));
        let members: Vec<u32> = (0..roles.len() as u32).filter(|index| hint[*index as usize]).collect();
        let all = pool.all().narrowed(&members);
        let choice = pool.outlier_filter.choice(&all, true, false, 1);
        let healthy = choice.map_or(members.clone(), |choice| choice.healthy.indices().to_vec());
        let out: Vec<u32> = members.iter().copied().filter(|index| !healthy.contains(index)).collect();
        prop_assert!(out.iter().all(|index| ejected.contains(index)));
        prop_assert!(healthy.is_sorted() && healthy.iter().all(|index| members.contains(index)));
        let endpoint = |index: u32| Arc::clone(&pool.store.snapshot().endpoints()[index as usize]);
        let groups: [fn(&Endpoint) -> bool; 5] = [
            |_| true,
            |e| e.role().encode,
            |e| e.role().prefill,
            |e| e.role().decode,
            |e| !(e.role().encode || e.role().prefill || e.role().decode),
        ];
        let count = |list: &[u32], group: fn(&Endpoint) -> bool| list.iter().filter(|index| group(&endpoint(**index))).count();
        let mut fits = true;
        for group in groups {
            let (all, out) = (count(&members, group), count(&out, group));
            prop_assert!(out * 2 <= all);
            let is_ejected: Vec<u32> = members.iter().copied().filter(|index| ejected.contains(index)).collect();
            fits &= count(&is_ejected, group) * 2 <= all;
        }
        if fits {
            prop_assert_eq!(out.len(), members.iter().filter(|index| ejected.contains(index)).count());
        }
    }
}
