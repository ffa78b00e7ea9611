//! Plugins by labels and by encoder caches against their rules once more, in loops over
//! plain structs.

use std::collections::BTreeSet;

use proptest::prelude::*;
use usher::config::Node;
use usher::endpoints::{Candidates, ROLE_LABEL};
use usher::schedule::data::EncoderCacheMatch;
use usher::schedule::{
    ByLabelFilter, ByLabelParams, Facts, Filter, HeaderLabelAffinityScorer, HeaderLabelParams, Key,
    MmEmbeddingsCacheScorer, RoleFilter, Scorer,
};

use crate::pool::{asking, filtered};
use crate::support::{column, pool, request};

/// An endpoint: the values of its labels, and the items that it has encoded.
#[derive(Clone, Debug)]
struct Pod {
    role: Option<String>,
    tier: Option<String>,
    encoded: BTreeSet<u64>,
}

mod reference {
    use super::{BTreeSet, Pod};

    /// Checks the stages that the roles do: all that are named in any of them, and nothing else.
    pub(super) fn does(stage: &str, pod: &Pod) -> bool {
        let (mut encodes, mut prefills, mut decodes) = (false, false, false);
        match pod.role.as_deref() {
            None => decodes = true,
            Some("both") => (prefills, decodes) = (true, true),
            Some(
                "encode"
                | "prefill"
                | "decode"
                | "encode-prefill"
                | "prefill-decode"
                | "encode-prefill-decode",
            ) => {
                for part in pod.role.as_deref().unwrap_or_default().split('-') {
                    match part {
                        "encode" => encodes = true,
                        "prefill" => prefills = true,
                        _ => decodes = true,
                    }
                }
            }
            Some(_) => {}
        }
        match stage {
            "encode" => encodes,
            "prefill" => prefills,
            _ => decodes,
        }
    }

    /// A label that isn't there passes where that is allowed, and where an empty one does.
    pub(super) fn passes(pod: &Pod, valid: &[String], allows_no_label: bool) -> bool {
        for value in valid {
            match &pod.tier {
                Some(tier) if tier == value => return true,
                None if value.is_empty() => return true,
                _ => {}
            }
        }
        pod.tier.is_none() && allows_no_label
    }

    pub(super) fn header_score(pod: &Pod, header: Option<&str>) -> f32 {
        match (header, &pod.tier) {
            (None | Some(""), _) | (_, None) => 0.0,
            (Some(header), Some(tier)) => {
                if header == tier {
                    1.0
                } else {
                    0.0
                }
            }
        }
    }

    pub(super) fn encoded_share(pod: &Pod, items: &BTreeSet<u64>) -> f32 {
        if items.is_empty() {
            return 0.0;
        }
        let (mut has, mut all) = (0.0, 0.0);
        for item in items {
            all += 1.0;
            if pod.encoded.contains(item) {
                has += 1.0;
            }
        }
        has / all
    }
}

const ROLES: [&str; 11] = [
    "encode",
    "prefill",
    "decode",
    "encode-prefill",
    "prefill-decode",
    "both",
    "encode-prefill-decode",
    "encode-decode",
    "Decode",
    "other",
    "",
];
const TIERS: [&str; 4] = ["", "gold", "iron", "Gold"];

fn one_of(values: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(values).prop_map(str::to_owned)
}

fn pods() -> impl Strategy<Value = Vec<Pod>> {
    let encoded = prop::collection::btree_set(0u64..6, 0..5);
    let pod = (prop::option::weighted(0.9, one_of(&ROLES)), prop::option::of(one_of(&TIERS)), encoded)
        .prop_map(|(role, tier, encoded)| Pod { role, tier, encoded });
    prop::collection::vec(pod, 1..20)
}

/// The pods as endpoints, of which each third is no candidate.
fn candidates(pods: &[Pod]) -> Candidates {
    let all = pool(pods.len(), |index, spec| {
        spec.labels.extend(pods[index].role.clone().map(|role| (ROLE_LABEL.to_owned(), role)));
        spec.labels.extend(pods[index].tier.clone().map(|tier| ("tier".to_owned(), tier)));
    });
    let some: Vec<u32> = (0..pods.len() as u32).filter(|index| index % 3 != 2).collect();
    all.narrowed(&some)
}

fn check_filter(
    filter: &dyn Filter,
    pods: &[Pod],
    keeps: impl Fn(&Pod) -> bool,
) -> Result<(), TestCaseError> {
    let mut expected = Vec::new();
    for (index, pod) in (0u32..).zip(pods) {
        if index % 3 != 2 && keeps(pod) {
            expected.push(index);
        }
    }
    prop_assert_eq!(filtered(filter, &candidates(pods)), expected);
    Ok(())
}

fn check_scores(scores: &[f32], pods: &[Pod], of: impl Fn(&Pod) -> f32) -> Result<(), TestCaseError> {
    let mut expected = Vec::new();
    for (index, pod) in pods.iter().enumerate() {
        if index % 3 != 2 {
            expected.push(of(pod));
        }
    }
    prop_assert_eq!(scores, expected);
    Ok(())
}

proptest! {
    #[test]
    fn role_filters_equal_their_reference(pods in pods()) {
        let filters = [("encode", RoleFilter::Encode), ("prefill", RoleFilter::Prefill), ("decode", RoleFilter::Decode)];
        for (stage, filter) in filters {
            check_filter(&filter, &pods, |pod| reference::does(stage, pod))?;
        }
    }

    #[test]
    fn the_filter_by_label_equals_its_reference(
        pods in pods(),
        valid in prop::collection::vec(one_of(&TIERS), 0..3),
        allows_no_label in any::<bool>(),
    ) {
        let params = ByLabelParams { label: "tier".to_owned(), valid_values: valid.clone(), allows_no_label };
        let filter = ByLabelFilter::new(params);
        check_filter(&filter, &pods, |pod| reference::passes(pod, &valid, allows_no_label))?;
    }

    #[test]
    fn the_header_label_scorer_equals_its_reference(
        pods in pods(),
        header in prop::option::weighted(0.9, one_of(&TIERS)),
    ) {
        let params = Node::parse("{headerName: X-Tier, labelKey: tier}").unwrap();
        let scorer = HeaderLabelAffinityScorer::new(&HeaderLabelParams::decode(&params).unwrap());
        let headers: Vec<(&str, &str)> = header.iter().map(|value| ("x-tier", value.as_str())).collect();
        let scores = column(&scorer, &asking(&headers), Facts::NONE, &candidates(&pods));
        check_scores(&scores, &pods, |pod| reference::header_score(pod, header.as_deref()))?;
    }

    #[test]
    fn the_embeddings_scorer_equals_its_reference(
        pods in pods(),
        items in prop::collection::btree_set(0u64..6, 0..5),
        known in any::<prop::sample::Index>(),
    ) {
        // Endpoints behind the end of the list have none.
        let known = known.index(pods.len() + 1);
        let mut pods = pods;
        pods.iter_mut().skip(known).for_each(|pod| pod.encoded.clear());
        let matched = pods.iter().take(known).map(|pod| pod.encoded.intersection(&items).count() as u32);
        let (key, mut facts) = (Key::new(1), Facts::default());
        facts.set(key, EncoderCacheMatch { items: items.iter().copied().collect(), matched: matched.collect() });
        let scorer: &dyn Scorer = &MmEmbeddingsCacheScorer::new(key);
        let scores = column(scorer, &request(), &facts, &candidates(&pods));
        check_scores(&scores, &pods, |pod| reference::encoded_share(pod, &items))?;
    }
}
