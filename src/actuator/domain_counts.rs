//! Topology domains of replacement pods: all pods of a step are in one domain, and so are their replacements.

use std::collections::{BTreeMap, BTreeSet};

use super::SENT;
use super::pods::PodObject;
use crate::capacity::rollout::Placement;

/// Pods of a role by domain: those past their gate, and those that are missing until replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DomainCounts {
    counts: BTreeMap<Placement, u32>,
    /// Domain of the last admitted step, until all its pods exist.
    step: Option<Placement>,
}

/// Pods of a role whose gate may be open.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateAdmission<'a> {
    /// Pods past the gate.
    pub(super) past: u32,
    /// Pods admitted past the gate.
    pub(super) admitted: u32,
    /// Domain for new pods, and for pods that leave closed domains.
    pub(super) step: Option<&'a Placement>,
    /// Domain for replacements if no other is known.
    pub(super) beside: Option<&'a Placement>,
    /// Closed domains, whose pods are moved.
    pub(super) closed: &'a BTreeSet<Placement>,
    /// Domains that accept no pods now: replacements in other domains come first.
    pub(super) late: &'a BTreeSet<Placement>,
}

/// Domain, with its layer, that a pod was sent to.
pub(super) fn placement_of(pod: &PodObject) -> Option<Placement> {
    let (layer, domain) = pod.metadata.annotations.get(SENT)?.split_once('=')?;
    Some(Placement { layer: layer.to_owned(), domain: domain.to_owned() })
}

impl DomainCounts {
    /// Counts pods past their gate.
    pub(super) fn of(pods: &[&PodObject]) -> Self {
        let mut places = BTreeMap::new();
        let past = pods.iter().filter(|pod| pod.is_alive() && !pod.is_gated());
        for place in past.filter_map(|pod| placement_of(pod)) {
            *places.entry(place).or_default() += 1;
        }
        Self { counts: places, step: None }
    }

    /// Open domain with the most pods.
    pub(super) fn most(&self, closed: &BTreeSet<Placement>) -> Option<&Placement> {
        let open = self.counts.iter().filter(|(place, _)| !closed.contains(*place));
        open.max_by_key(|(_, pods)| **pods).map(|(place, _)| place)
    }

    /// All domains.
    pub(super) fn all(&self) -> impl Iterator<Item = &Placement> {
        self.counts.keys()
    }

    /// Missing pods in the domains that `of` selects; `now` are the existing ones.
    pub(super) fn missing(&self, now: &Self, of: impl Fn(&Placement) -> bool) -> u32 {
        let wanted = self.counts.iter().filter(|(place, _)| of(place));
        let missing = wanted.map(|(place, wanted)| wanted.saturating_sub(now.in_domain(place)));
        missing.fold(0, u32::saturating_add)
    }

    fn in_domain(&self, place: &Placement) -> u32 {
        self.counts.get(place).copied().unwrap_or(0)
    }

    /// Domains of the next pods to pass the gate; `now` are the pods past it. `None`: any domain.
    ///
    /// Domains of future pods are not recorded: by the time they exist a domain may be full, and the step
    /// moved to another.
    pub(super) fn next(&mut self, now: &Self, admission: GateAdmission<'_>) -> Vec<Option<Placement>> {
        let GateAdmission { past, admitted, step, beside, closed, late } = admission;
        if past >= admitted {
            // All pods exist, or fewer are desired.
            self.clone_from(now);
            return Vec::new();
        }
        if step.is_some() {
            self.step = step.cloned();
        }
        let missing = |is_late: bool| {
            let is_now = |place: &Placement| !closed.contains(place) && late.contains(place) == is_late;
            let mut all: Vec<Option<Placement>> = Vec::new();
            for (place, wanted) in self.counts.iter().filter(|(place, _)| is_now(place)) {
                let missing = wanted.saturating_sub(now.in_domain(place));
                all.extend(std::iter::repeat_n(Some(place.clone()), missing as usize));
            }
            all
        };
        let (mut next, waiting) = (missing(false), missing(true));
        let all = (admitted - past) as usize;
        let step = self.step.as_ref().filter(|step| !closed.contains(*step)).or(beside);
        let more = all.saturating_sub(next.len() + waiting.len());
        // Pods of the step may fit where others wait for a node.
        if !step.is_some_and(|step| late.contains(step)) {
            next.extend(std::iter::repeat_n(step.cloned(), more));
        }
        next.extend(waiting);
        next.resize(all, step.cloned());
        next
    }

    /// Records the domains of pods that have passed their gate; `now` are the pods that were past it before.
    /// Pods beyond a domain's shortfall replace pods of `closed` domains.
    pub(super) fn passed(&mut self, now: &Self, opened: &[Option<Placement>], closed: &BTreeSet<Placement>) {
        let mut there = now.clone();
        for place in opened.iter().flatten() {
            *there.counts.entry(place.clone()).or_default() += 1;
        }
        let mut moved = 0u32;
        for (place, there) in there.counts.into_iter().filter(|(place, there)| *there > now.in_domain(place))
        {
            let wanted = self.counts.entry(place).or_default();
            moved = moved.saturating_add(there.saturating_sub(*wanted));
            *wanted = (*wanted).max(there);
        }
        for (place, wanted) in self.counts.iter_mut().filter(|(place, _)| closed.contains(*place)) {
            let gone = wanted.saturating_sub(now.in_domain(place)).min(moved);
            *wanted -= gone;
            moved -= gone;
        }
    }

    /// Domains with their number of pods.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&Placement, u32)> {
        self.counts.iter().map(|(place, pods)| (place, *pods))
    }

    /// Counts by domain from a status.
    pub(super) fn from_status(counts: impl Iterator<Item = (Placement, u32)>) -> Self {
        Self { counts: counts.collect(), step: None }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::actuator::pods::tests::pod;

    const NONE: BTreeSet<Placement> = BTreeSet::new();

    fn at(domain: &str) -> Placement {
        Placement { layer: "rack".to_owned(), domain: domain.to_owned() }
    }

    fn places(counts: &[(&str, u32)]) -> DomainCounts {
        DomainCounts::from_status(counts.iter().map(|(domain, pods)| (at(domain), *pods)))
    }

    fn domains(next: &[Option<Placement>]) -> Vec<&str> {
        next.iter().map(|place| place.as_ref().map_or("anywhere", |place| place.domain.as_str())).collect()
    }

    #[test]
    fn pods_past_their_gate_are_counted_by_domain() {
        let of = |sent: &str, gates: serde_json::Value| {
            pod(
                json!({"metadata": {"name": "x", "annotations": {SENT: sent}}, "spec": {"schedulingGates": gates}}),
            )
        };
        let pods = [of("rack=a", json!([])), of("rack=a", json!([])), of("rack=b", json!([]))];
        let gated = of("rack=b", json!([{"name": super::super::GATE}]));
        let all: Vec<&PodObject> = pods.iter().chain([&gated]).collect();
        assert_eq!(DomainCounts::of(&all), places(&[("a", 2), ("b", 1)]));
        assert_eq!(DomainCounts::of(&all).most(&NONE), Some(&at("a")));
    }

    #[test]
    fn replacements_go_to_domains_with_missing_pods() {
        let (step, mut all) = (at("b"), places(&[("a", 4)]));
        let whole = GateAdmission {
            past: 4,
            admitted: 8,
            step: Some(&step),
            beside: None,
            closed: &NONE,
            late: &NONE,
        };
        let four = places(&[("a", 4)]);
        let next = all.next(&four, whole);
        assert_eq!(domains(&next), ["b"; 4]);
        all.passed(&four, &next[..2], &NONE);
        // Two of the new step are there, and one of the old is gone.
        let some = GateAdmission { past: 5, ..whole };
        let now = places(&[("a", 3), ("b", 2)]);
        let next = all.next(&now, some);
        assert_eq!(domains(&next), ["a", "b", "b"]);
        all.passed(&now, &next, &NONE);
        // One of the new step is gone before it was seen.
        let now = places(&[("a", 4), ("b", 3)]);
        assert_eq!(domains(&all.next(&now, GateAdmission { past: 7, step: None, ..whole })), ["b"]);
        let none =
            GateAdmission { past: 8, admitted: 8, step: None, beside: None, closed: &NONE, late: &NONE };
        assert!(all.next(&places(&[("a", 4), ("b", 4)]), none).is_empty());
        let later = GateAdmission { past: 6, step: None, ..none };
        assert_eq!(domains(&all.next(&places(&[("a", 3), ("b", 3)]), later)), ["a", "b"]);
    }

    #[test]
    fn late_pods_go_to_the_current_domain_of_the_step() {
        let (b, c) = (at("b"), at("c"));
        let (mut all, now) = (places(&[("a", 4)]), places(&[("a", 4)]));
        let admission =
            GateAdmission { past: 4, admitted: 8, step: Some(&b), beside: None, closed: &NONE, late: &NONE };
        assert_eq!(domains(&all.next(&now, admission)), ["b"; 4]);
        all.passed(&now, &[], &NONE);
        // While nothing is observed, their domains stay.
        assert_eq!(
            domains(&all.next(&now, GateAdmission { step: None, beside: Some(&at("a")), ..admission })),
            ["b"; 4]
        );
        // Another group has taken the room of b before they came.
        assert_eq!(domains(&all.next(&now, GateAdmission { step: Some(&c), ..admission })), ["c"; 4]);
    }

    #[test]
    fn replacements_leave_a_closed_domain_with_the_step() {
        let (step, closed) = (at("b"), BTreeSet::from([at("a")]));
        let now = places(&[("a", 1), ("c", 2)]);
        let admission = GateAdmission {
            past: 3,
            admitted: 7,
            step: Some(&step),
            beside: None,
            closed: &closed,
            late: &closed,
        };
        let mut all = places(&[("a", 4), ("c", 3)]);
        let next = all.next(&now, admission);
        assert_eq!(domains(&next), ["c", "b", "b", "b"]);
        let counts =
            |all: &DomainCounts| all.counts().map(|(at, pods)| (at.domain.clone(), pods)).collect::<Vec<_>>();
        let of = |pods: &[(&str, u32)]| {
            pods.iter().map(|(at, pods)| ((*at).to_owned(), *pods)).collect::<Vec<_>>()
        };
        assert_eq!(counts(&all), of(&[("a", 4), ("c", 3)]), "none has passed yet");
        all.passed(&now, &next[..2], &closed);
        assert_eq!(counts(&all), of(&[("a", 3), ("b", 1), ("c", 3)]), "two need another domain yet");
        all.passed(&places(&[("a", 1), ("b", 1), ("c", 3)]), &next[2..], &closed);
        assert_eq!(
            counts(&all),
            of(&[("a", 1), ("b", 3), ("c", 3)]),
            "they are missed there if they are lost again"
        );
        // Without a step for them none is admitted.
        let mut all = places(&[("a", 4), ("c", 3)]);
        assert_eq!(domains(&all.next(&now, GateAdmission { admitted: 4, step: None, ..admission })), ["c"]);
    }

    #[test]
    fn open_domains_are_refilled_before_closed_ones() {
        let (mut all, late) = (places(&[("a", 4), ("b", 4)]), BTreeSet::from([at("a")]));
        let admission =
            GateAdmission { past: 3, admitted: 8, step: None, beside: None, closed: &NONE, late: &late };
        assert_eq!(domains(&all.next(&places(&[("b", 3)]), admission)), ["b", "a", "a", "a", "a"]);
        // So do those of a step.
        let step = at("c");
        let admission = GateAdmission { past: 4, admitted: 10, step: Some(&step), ..admission };
        assert_eq!(domains(&all.next(&places(&[("b", 4)]), admission)), ["c", "c", "a", "a", "a", "a"]);
    }

    #[test]
    fn smaller_role_forgets_its_old_domains() {
        let mut all = places(&[("a", 4), ("b", 4)]);
        let fewer =
            GateAdmission { past: 4, admitted: 4, step: None, beside: None, closed: &NONE, late: &NONE };
        assert!(all.next(&places(&[("a", 1), ("b", 3)]), fewer).is_empty());
        let one = GateAdmission { past: 3, ..fewer };
        assert_eq!(domains(&all.next(&places(&[("a", 1), ("b", 2)]), one)), ["b"]);
    }

    #[test]
    fn pods_of_unknown_domain_join_their_siblings() {
        let (mut all, beside) = (DomainCounts::default(), at("a"));
        let admission = GateAdmission {
            past: 1,
            admitted: 2,
            step: None,
            beside: Some(&beside),
            closed: &NONE,
            late: &NONE,
        };
        assert_eq!(domains(&all.next(&places(&[("a", 1)]), admission)), ["a"]);
        assert_eq!(
            domains(&all.next(&places(&[]), GateAdmission { beside: None, ..admission })),
            ["anywhere"]
        );
    }
}
