//! The pool as its detector sees it.

use crate::endpoints::{Candidates, View};
use crate::flow::queue::Capacity;
use crate::schedule::{Level, SaturationDetector};

/// All endpoints, and those of them that prefill and decode.
#[derive(Debug, Default)]
pub(super) struct Stages {
    candidates: Option<Candidates>,
    prefill: Vec<u32>,
    decode: Vec<u32>,
}

/// Load of each stage, where there are endpoints for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Levels {
    pub(super) prefill: Option<Level>,
    pub(super) decode: Option<Level>,
    /// Load of all together, where no endpoint has a stage.
    pub(super) all: Option<Level>,
}

impl Stages {
    /// Takes the endpoints that there are now. Says whether they are others than before.
    /// Older candidates than the known ones are ignored, as calls can arrive out of order.
    pub(super) fn set(&mut self, candidates: &Candidates) -> bool {
        let is_known = |known: &Candidates| is_equal(known, candidates) || is_later(known, candidates);
        if self.candidates.as_ref().is_some_and(is_known) {
            return false;
        }
        let snapshot = candidates.snapshot();
        let of_role = |has: fn(crate::endpoints::Role) -> bool| {
            let roles = candidates.view();
            let of = roles.indices().iter().zip(roles.iter()).filter(|(_, endpoint)| has(endpoint.role()));
            of.map(|(index, _)| *index).collect()
        };
        (self.prefill, self.decode) = (of_role(|role| role.prefill), of_role(|role| role.decode));
        tracing::debug!(
            generation = snapshot.generation(),
            prefill = self.prefill.len(),
            decode = self.decode.len(),
            "endpoints changed"
        );
        self.candidates = Some(candidates.clone());
        true
    }

    /// Number of endpoints.
    pub(super) fn endpoints(&self) -> usize {
        self.candidates.as_ref().map_or(0, Candidates::len)
    }

    /// All endpoints, as far as they are known.
    pub(super) fn candidates(&self) -> Option<&Candidates> {
        self.candidates.as_ref()
    }

    /// Load of the stages. An endpoint that only encodes is in none.
    pub(super) fn levels(&self, detector: &dyn SaturationDetector, now_ms: u64) -> Levels {
        let Some(candidates) = &self.candidates else { return Levels::default() };
        let level = |indices: &[u32]| {
            (!indices.is_empty()).then(|| detector.level(now_ms, View::new(candidates.snapshot(), indices)))
        };
        let (prefill, decode) = (level(&self.prefill), level(&self.decode));
        let has_stages = prefill.is_some() || decode.is_some();
        let all = (!has_stages).then(|| detector.level(now_ms, candidates.view()));
        Levels { prefill, decode, all }
    }
}

impl Levels {
    /// The room that they leave.
    pub(super) fn capacity(self) -> Capacity {
        Capacity::new([self.prefill, self.decode, self.all].into_iter().flatten())
    }
}

fn is_later(known: &Candidates, candidates: &Candidates) -> bool {
    known.snapshot().number() > candidates.snapshot().number()
}

fn is_equal(known: &Candidates, candidates: &Candidates) -> bool {
    known.is_same(candidates)
        || (known.snapshot().generation() == candidates.snapshot().generation()
            && known.indices() == candidates.indices())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::{EndpointSpec, ROLE_LABEL, Store};

    /// Counts the endpoints that it is asked about.
    struct Counting;

    impl SaturationDetector for Counting {
        fn saturation(&self, _now_ms: u64, endpoints: View<'_>) -> f64 {
            endpoints.len() as f64
        }
    }

    #[test]
    fn an_older_pool_does_not_replace_a_newer_one() {
        let store = Store::default();
        let before = store.snapshot().all();
        store.replace(vec![EndpointSpec::new("pod-0", ([10, 0, 0, 1], 8000))]);
        let mut stages = Stages::default();
        assert!(stages.set(&store.snapshot().all()));
        assert!(!stages.set(&before));
        assert_eq!(stages.endpoints(), 1);
        store.replace(Vec::new());
        assert!(stages.set(&store.snapshot().all()));
        assert_eq!(stages.endpoints(), 0);
    }

    #[test]
    fn endpoints_count_in_the_stages_of_their_roles() {
        // Roles, and how many prefill, decode, and count together.
        type Row = (&'static [&'static str], Option<f64>, Option<f64>, Option<f64>);
        let table: [Row; 8] = [
            (&[], None, None, Some(0.0)),
            (&["-", "-"], None, Some(2.0), None),
            (&["decode", "-", "prefill"], Some(1.0), Some(2.0), None),
            (&["both", "prefill-decode", "encode-prefill-decode"], Some(3.0), Some(3.0), None),
            (&["encode-prefill", "decode"], Some(1.0), Some(1.0), None),
            (&["prefill"], Some(1.0), None, None),
            (&["encode", "decode", "something"], None, Some(1.0), None),
            (&["encode", "something"], None, None, Some(2.0)),
        ];
        for (roles, prefill, decode, all) in table {
            let store = Store::default();
            let spec = |(index, role): (usize, &&str)| {
                let mut spec = EndpointSpec::new(format!("pod-{index}"), ([10, 0, 0, index as u8 + 1], 8000));
                if *role != "-" {
                    spec.labels.insert(ROLE_LABEL.to_owned(), (*role).to_owned());
                }
                spec
            };
            store.replace(roles.iter().enumerate().map(spec).collect());
            let mut stages = Stages::default();
            assert!(stages.set(&store.snapshot().all()));
            assert!(!stages.set(&store.snapshot().all()), "the same again");
            let levels = stages.levels(&Counting, 1);
            let saturation = |level: Option<Level>| level.map(|level| level.saturation);
            let got = (saturation(levels.prefill), saturation(levels.decode), saturation(levels.all));
            assert_eq!(got, (prefill, decode, all), "{roles:?}");
        }
    }
}
