//! `disaggregatedset-rollout-screener`: headers, revisions, shares.

use std::collections::{BTreeMap, BTreeSet};

use prometheus::{Registry, TextEncoder};
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::config::Node;
use usher::endpoints::{Candidates, EndpointSpec, Store};
use usher::request::Request;
use usher::schedule::{
    Effects, PluginId, RequestContext, ResponseHead, RolloutMetrics, RolloutParams, RolloutScreener,
    Screener, Served,
};

use super::{labelled, with_headers};
use crate::support::{MAX_AGE, NOW};

const REVISION: &str = "disaggregatedset.x-k8s.io/revision";
const ROLE: &str = "disaggregatedset.x-k8s.io/role";

struct Screened {
    screener: RolloutScreener,
    registry: Registry,
    rng: StdRng,
}

impl Screened {
    fn new(params: &str) -> Self {
        let registry = Registry::new();
        let metrics = RolloutMetrics::register(&registry).unwrap();
        let params = RolloutParams::decode(&Node::parse(params).unwrap()).unwrap();
        let id = PluginId::new("disaggregatedset-rollout-screener", "rollout");
        let screener = RolloutScreener::new(params, &id, &metrics);
        Self { screener, registry, rng: StdRng::seed_from_u64(5) }
    }

    fn screen(&mut self, all: &Candidates, request: &Request) -> (Vec<u32>, Effects) {
        let cx = RequestContext { request, now_ms: NOW, max_age: MAX_AGE };
        let (mut kept, mut effects) = (all.indices().to_vec(), Effects::default());
        self.screener.screen(&cx, all, &mut self.rng, &mut kept, &mut effects);
        (kept, effects)
    }

    fn kept(&mut self, all: &Candidates, headers: &[(&str, &str)]) -> Vec<u32> {
        self.screen(all, &with_headers(headers)).0
    }

    fn metric(&self, line: &str) -> bool {
        let text = TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        text.lines().any(|known| known == line)
    }

    fn share(&self, mode: &str, revision: &str, share: f64) -> bool {
        self.metric(&format!(
            "llm_d_epp_disaggregatedset_revision_gating_share{{mode=\"{mode}\",plugin_name=\"rollout\",plugin_type=\"disaggregatedset-rollout-screener\",revision=\"{revision}\"}} {share}"
        ))
    }
}

/// An endpoint of `app: llm` with a revision and a role, where they are not empty.
fn member(revision: &str, role: &str) -> Vec<(&'static str, String)> {
    let labels = [("app", "llm"), (REVISION, revision), (ROLE, role)];
    labels
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| (key, value.to_owned()))
        .collect()
}

/// Two revisions: `old` is positions 0 to 3, `new` 4 to 6; 7 is out of scope, and 8 has
/// no revision.
fn pool() -> Candidates {
    labelled(&[
        member("old", "prefill"),
        member("old", "prefill"),
        member("old", "decode"),
        member("old", "decode"),
        member("new", "prefill"),
        member("new", "decode"),
        member("new", "decode"),
        vec![("app", "other".to_owned()), (REVISION, "other".to_owned())],
        member("", "decode"),
    ])
}

const OLD: [u32; 5] = [0, 1, 2, 3, 7];
const NEW: [u32; 4] = [4, 5, 6, 7];

fn params(gating: &str) -> String {
    format!(
        "{{scope: {{labelSelector: {{matchLabels: {{app: llm}}}}}}, headerSelectors: [{{name: pin, headerName: x-revision, labelKey: {REVISION}}}, {{headerName: x-role, labelKey: {ROLE}, mode: prefer}}], revisionGating: {gating}}}"
    )
}

/// Number of times that `new` is chosen in 6000 requests; asserts that nothing else is but `old`.
fn chosen(screened: &mut Screened, all: &Candidates) -> usize {
    let mut count = 0;
    for _ in 0..6000 {
        let kept = screened.kept(all, &[]);
        assert!(kept == OLD || kept == NEW, "{kept:?}");
        count += usize::from(kept == NEW);
    }
    count
}

#[test]
fn revision_is_picked_in_proportion_to_its_weight() {
    let all = pool();
    // Endpoints of both roles: 4 to 3. Of the largest, which is decode: 2 to 2.
    let table = [("{}", "sum", 3.0 / 7.0, 4.0 / 7.0), ("{mode: max-role}", "max-role", 0.5, 0.5)];
    for (gating, mode, expected, rest) in table {
        let mut screened = Screened::new(&params(gating));
        // More than six standard deviations.
        let count = chosen(&mut screened, &all) as f64;
        assert!((count - 6000.0 * expected).abs() < 240.0, "{gating}: {count}");
        assert!(screened.share(mode, "new", expected), "{gating}");
        assert!(screened.share(mode, "old", rest), "{gating}");
        assert!(!screened.share(mode, "other", 0.0), "out of scope");
    }
}

#[test]
fn a_revision_without_a_required_role_gets_nothing() {
    let all = labelled(&[
        member("old", "prefill"),
        member("old", "decode"),
        member("new", "decode"),
        member("new", "decode"),
    ]);
    for (required, expected) in [("[prefill, decode]", vec![0, 1]), ("[encode]", vec![])] {
        let mut screened = Screened::new(&params(&format!("{{requireRoles: {{values: {required}}}}}")));
        for _ in 0..50 {
            assert_eq!(screened.kept(&all, &[]), expected, "{required}");
        }
        let share = if expected.is_empty() { 0.0 } else { 1.0 };
        assert!(screened.share("sum", "old", share) && screened.share("sum", "new", 0.0));
    }
    // A header can't take a revision apart: preferred, it doesn't count then; strict, it
    // leaves nothing.
    let mut screened = Screened::new(&params("{requireRoles: {values: [prefill, decode]}}"));
    assert_eq!(screened.kept(&all, &[("x-role", "decode")]), [0, 1]);
    assert_eq!(screened.kept(&all, &[("x-revision", "new")]), [0u32; 0]);
    // What is not a candidate doesn't complete a revision.
    let mut screened = Screened::new(&params("{requireRoles: {values: [prefill, decode]}}"));
    assert_eq!(screened.kept(&all.narrowed(&[1, 2, 3]), &[]), [0u32; 0]);
    assert_eq!(screened.kept(&all.narrowed(&[0, 1, 3]), &[]), [0, 1]);
}

#[test]
fn headers_choose_among_the_endpoints_in_scope() {
    let (all, mut screened) = (pool(), Screened::new(&params("{}")));
    let table: [(&[(&str, &str)], &[u32]); 6] = [
        (&[("x-revision", "new")], &NEW),
        (&[("X-Revision", "old")], &OLD),
        (&[("x-revision", "new"), ("x-role", "decode")], &[5, 6, 7]),
        (&[("x-revision", "new"), ("x-role", "encode")], &NEW),
        // No endpoint in scope has it, though one out of scope does.
        (&[("x-revision", "gone")], &[7]),
        (&[("x-revision", "other")], &[7]),
    ];
    for (headers, expected) in table {
        for _ in 0..20 {
            assert_eq!(screened.kept(&all, headers), expected, "{headers:?}");
        }
    }
    let counted = "llm_d_epp_disaggregatedset_strict_header_no_match_total{plugin_name=\"rollout\",plugin_type=\"disaggregatedset-rollout-screener\",selector=";
    assert!(screened.metric(&format!("{counted}\"pin\"}} 40")));
    assert!(screened.metric(&format!("{counted}\"x-role\"}} 0")), "what is only preferred is not missed");
    assert!(
        matches!(screened.kept(&all, &[("x-revision", "")]).len(), 4 | 5),
        "an empty header asks for nothing"
    );
}

#[test]
fn without_gating_only_headers_choose() {
    let (all, mut screened) =
        (pool(), Screened::new(&params("{mode: disabled, requireRoles: {values: [encode]}}")));
    assert_eq!(screened.kept(&all, &[]), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(screened.kept(&all, &[("x-revision", "new")]), [4, 5, 6, 7]);
    assert!(!screened.share("disabled", "new", 1.0));
}

#[test]
fn response_headers_name_revision_and_role() {
    let (all, mut screened) = (pool(), Screened::new(&params("{}")));
    let table: [(usize, &[(&str, &str)]); 4] = [
        (4, &[("x-revision", "new"), ("x-role", "prefill")]),
        (2, &[("x-revision", "old"), ("x-role", "decode")]),
        (7, &[]),
        (8, &[("x-role", "decode")]),
    ];
    for (position, expected) in table {
        let (_, mut effects) = screened.screen(&all, &Request::default());
        let (mut observers, mut headers) = (effects.take_observers(), Vec::new());
        let endpoint = &all.snapshot().endpoints()[position];
        observers.response_headers(
            &ResponseHead { served: &Served::Unknown, endpoint, is_stream: true },
            &mut headers,
        );
        let headers: Vec<_> = headers
            .iter()
            .map(|header| (&*header.name, std::str::from_utf8(&header.value).unwrap()))
            .collect();
        assert_eq!(headers, expected);
    }
}

#[test]
fn revision_shares_follow_the_pool() {
    let store = Store::default();
    let spec = |name: &str, revision: &str| {
        let mut spec = EndpointSpec::new(name, ([10, 0, 0, name.len() as u8], 8000));
        spec.labels =
            member(revision, "decode").into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        spec
    };
    let mut screened = Screened::new(&params("{}"));
    store.replace(vec![spec("a", "old"), spec("bb", "old"), spec("ccc", "new"), spec("dddd", "new")]);
    screened.kept(&store.snapshot().all(), &[("x-revision", "new")]);
    assert!(screened.share("sum", "old", 0.5), "a header changes the request, not the share");
    store.replace(vec![spec("a", "new"), spec("ccc", "new"), spec("dddd", "newer")]);
    let kept = screened.kept(&store.snapshot().all(), &[("x-revision", "newer")]);
    assert_eq!(kept, [2]);
    assert!(screened.share("sum", "newer", 1.0 / 3.0));
    assert!(!screened.share("sum", "old", 0.5) && !screened.share("sum", "old", 0.0), "its series is gone");
}

/// An endpoint as the reference sees it.
#[derive(Clone, Debug)]
struct Pod {
    in_scope: bool,
    revision: Option<u8>,
    role: Option<u8>,
}

/// The sets that may be kept, found the long way.
fn possible(
    pods: &[Pod],
    (pinned, preferred): (Option<u8>, Option<u8>),
    mode: &str,
    required: &BTreeSet<u8>,
) -> BTreeSet<Vec<u32>> {
    let mut members: Vec<(u32, &Pod)> = Vec::new();
    let mut outside = Vec::new();
    let is_preferred = |pod: &Pod| preferred.is_none() || pod.role == preferred;
    for (index, pod) in pods.iter().enumerate() {
        if !pod.in_scope {
            outside.push(index as u32);
        } else if (pinned.is_none() || pod.revision == pinned) && is_preferred(pod) {
            members.push((index as u32, pod));
        }
    }
    let with = |chosen: Vec<u32>| -> Vec<u32> {
        let all: BTreeSet<u32> = outside.iter().copied().chain(chosen).collect();
        all.into_iter().collect()
    };
    if mode == "disabled" {
        if members.is_empty() && preferred.is_some() {
            return possible(pods, (pinned, None), mode, required);
        }
        return BTreeSet::from([with(members.iter().map(|(index, _)| *index).collect())]);
    }
    let mut by_revision: BTreeMap<u8, Vec<(u32, Option<u8>)>> = BTreeMap::new();
    for (index, pod) in &members {
        if let Some(revision) = pod.revision {
            by_revision.entry(revision).or_default().push((*index, pod.role));
        }
    }
    by_revision.retain(|_, pods| required.iter().all(|role| pods.iter().any(|(_, has)| has == &Some(*role))));
    if mode == "max-role" {
        let mut counts: BTreeMap<u8, usize> = BTreeMap::new();
        for role in by_revision.values().flatten().filter_map(|(_, role)| *role) {
            *counts.entry(role).or_default() += 1;
        }
        // The first of the largest.
        let largest = counts.iter().max_by(|a, b| a.1.cmp(b.1).then(b.0.cmp(a.0))).map(|(role, _)| *role);
        if let Some(largest) = largest {
            by_revision.retain(|_, pods| pods.iter().any(|(_, role)| *role == Some(largest)));
        }
    }
    if by_revision.is_empty() {
        if preferred.is_some() {
            return possible(pods, (pinned, None), mode, required);
        }
        return BTreeSet::from([with(Vec::new())]);
    }
    by_revision.into_values().map(|pods| with(pods.into_iter().map(|(index, _)| index).collect())).collect()
}

fn pod() -> impl Strategy<Value = Pod> {
    let label = || proptest::option::weighted(0.85, 0u8..3);
    (proptest::bool::weighted(0.8), label(), label()).prop_map(|(in_scope, revision, role)| Pod {
        in_scope,
        revision,
        role,
    })
}

proptest! {
    #[test]
    fn kept_endpoints_match_the_reference(
        pods in proptest::collection::vec(pod(), 1..16),
        pinned in proptest::option::weighted(0.3, 0u8..3),
        preferred in proptest::option::weighted(0.3, 0u8..3),
        mode in proptest::sample::select(vec!["sum", "max-role", "disabled"]),
        required in proptest::collection::btree_set(0u8..3, 0..3),
    ) {
        let labels = |pod: &Pod| {
            let mut labels = vec![("app", if pod.in_scope { "llm" } else { "other" }.to_owned())];
            labels.extend(pod.revision.map(|revision| (REVISION, format!("r{revision}"))));
            labels.extend(pod.role.map(|role| (ROLE, format!("role{role}"))));
            labels
        };
        let all = labelled(&pods.iter().map(labels).collect::<Vec<_>>());
        let roles: Vec<String> = required.iter().map(|role| format!("role{role}")).collect();
        let gating = format!("{{mode: {mode}, requireRoles: {{values: [{}]}}}}", roles.join(", "));
        let mut screened = Screened::new(&params(&gating));
        let values = [pinned.map(|value| format!("r{value}")), preferred.map(|value| format!("role{value}"))];
        let named = ["x-revision", "x-role"].into_iter().zip(&values);
        let headers: Vec<(&str, &str)> = named.filter_map(|(name, value)| Some((name, value.as_deref()?))).collect();
        let possible = possible(&pods, (pinned, preferred), mode, &required);
        for _ in 0..20 {
            let kept = screened.kept(&all, &headers);
            prop_assert!(possible.contains(&kept), "{:?} is not one of {:?}", kept, possible);
        }
    }
}
