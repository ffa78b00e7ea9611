//! Filters, scorers and pickers that get in each other's way in one profile.

use super::finding::Finding;
use crate::cli::check::view::{View, plain, total_weight};
use crate::registry::ResolvedProfile;
use crate::registry::replayed::{BUILT_IN_TTFT, EXPECTED_LATENCY_TTFT, STICKY_TTFT};

type Rule = fn(View<'_>, &ResolvedProfile) -> Option<Finding>;

pub(super) const RULES: [Rule; 6] = [herding, held_by_prefix, sticky_without_load, random, not_alone, pinned];

/// Scorers of a prefix cache.
const PREFIX: [&str; 2] = ["prefix-cache-scorer", "multicluster-prefix-cache-scorer"];

/// Scorers that see no difference between endpoints that are idle.
const EQUAL_IF_IDLE: [&str; 4] =
    ["queue-scorer", "kv-cache-utilization-scorer", "load-aware-scorer", "no-hit-lru-scorer"];

/// Scorers of load.
const LOAD: [&str; 8] = [
    "queue-scorer",
    "kv-cache-utilization-scorer",
    "load-aware-scorer",
    "running-requests-size-scorer",
    "active-request-scorer",
    "token-load-scorer",
    "expected-latency-scorer",
    "latency-scorer",
];

const EXPECTED: [&str; 2] = ["expected-latency-scorer", "expected-ttft-scorer"];

/// Names of the profile's scorers of some types, those without weight left out.
fn scorers<'a>(
    view: View<'a>,
    profile: &'a ResolvedProfile,
    types: &'a [&'a str],
) -> impl Iterator<Item = &'a str> {
    let weighty = profile.scorers.iter().filter(|scorer| scorer.weight > 0.0);
    weighty.map(|scorer| scorer.plugin.as_str()).filter(move |name| view.has_type(name, types))
}

fn filter<'a>(view: View<'a>, profile: &'a ResolvedProfile, types: &[&str]) -> Option<&'a str> {
    profile.filters.iter().map(String::as_str).find(|name| view.has_type(name, types))
}

/// Any match outweighs idle endpoints' equal loads.
fn herding(view: View<'_>, profile: &ResolvedProfile) -> Option<Finding> {
    let prefix = scorers(view, profile, &PREFIX).next()?;
    let weighty = profile.scorers.iter().filter(|scorer| scorer.weight > 0.0);
    let mut others = weighty.filter(|scorer| !view.has_type(&scorer.plugin, &PREFIX));
    let known = PREFIX.into_iter().chain(EQUAL_IF_IDLE);
    let is_blind = others.all(|scorer| view.has_type(&scorer.plugin, &known.clone().collect::<Vec<_>>()));
    // A profile of this filter is about another combination.
    let is_random = view.has_type(&profile.picker.plugin, &["random-picker", "weighted-random-picker"]);
    if !is_blind || is_random || filter(view, profile, &["prefix-cache-affinity-filter"]).is_some() {
        return None;
    }
    Some(Finding {
        rule: "prefix-herding",
        message: format!(
            "profile '{}': where all prompts begin alike, as with one system prompt, '{prefix}' sends them to \
             one endpoint as long as no queue forms. In replay with the weights queue 2, KV cache 2 and prefix 3, \
             one server of eight got all 500 requests at 2 % load: mean TTFT {BUILT_IN_TTFT}, with \
             expected-latency-scorer alone {EXPECTED_LATENCY_TTFT}. Use that, or prefix-cache-affinity-filter before \
             token-load-scorer ({STICKY_TTFT})",
            profile.name
        ),
        docs: "docs/guide/prefix-and-pairs.md#which-scorer",
    })
}

/// The scorer keeps what the filter lets go.
fn held_by_prefix(view: View<'_>, profile: &ResolvedProfile) -> Option<Finding> {
    let filter = filter(view, profile, &["prefix-cache-affinity-filter"])?;
    let scorer = scorers(view, profile, &PREFIX).next()?;
    Some(Finding {
        rule: "prefix-scorer-beside-affinity",
        message: format!(
            "profile '{}': '{filter}' lets a request leave a saturated endpoint, and '{scorer}' holds on to it \
             even then; leave the scorer out",
            profile.name
        ),
        docs: "docs/reference/plugins.md#filters",
    })
}

/// All endpoints that the filter keeps are equal.
fn sticky_without_load(view: View<'_>, profile: &ResolvedProfile) -> Option<Finding> {
    let filter = filter(view, profile, &["prefix-cache-affinity-filter"])?;
    let picks_by_score = !view.has_type(&profile.picker.plugin, &["random-picker"]);
    if picks_by_score && scorers(view, profile, &LOAD).next().is_some() {
        return None;
    }
    Some(Finding {
        rule: "affinity-without-load",
        message: format!(
            "profile '{}': no scorer of load follows '{filter}', so new prompts and those of warm endpoints \
             go anywhere among them; add token-load-scorer",
            profile.name
        ),
        docs: "docs/reference/plugins.md#filters",
    })
}

fn random(view: View<'_>, profile: &ResolvedProfile) -> Option<Finding> {
    let is_random = view.has_type(&profile.picker.plugin, &["random-picker"]);
    if !is_random || profile.scorers.is_empty() {
        return None;
    }
    Some(Finding {
        rule: "scores-ignored",
        message: format!(
            "profile '{}': '{}' ignores what {} scorers say. In replay a random choice had a p90 of TTFT 371 % \
             above the best policy's on average; use max-score-picker",
            profile.name,
            profile.picker.plugin,
            profile.scorers.len()
        ),
        docs: "docs/guide/expected-latency.md#measured",
    })
}

/// Its cost has all that the other scorers say.
fn not_alone(view: View<'_>, profile: &ResolvedProfile) -> Option<Finding> {
    let expected = scorers(view, profile, &EXPECTED).next()?;
    let counted = LOAD.into_iter().chain(PREFIX).filter(|other| !EXPECTED.contains(other));
    let counted: Vec<&str> = counted.collect();
    let twice = scorers(view, profile, &counted).next()?;
    Some(Finding {
        rule: "counted-twice",
        message: format!(
            "profile '{}': the cost of '{expected}' is in seconds and has queues, batches and cached prefixes \
             already; '{twice}' counts them again, by a weight that no unit fits. Leave it out",
            profile.name
        ),
        docs: "docs/guide/expected-latency.md#what-it-minimises",
    })
}

/// A session stays whatever the load is.
fn pinned(view: View<'_>, profile: &ResolvedProfile) -> Option<Finding> {
    const FILTERS: [&str; 2] = ["session-affinity-filter", "multicluster-session-affinity-filter"];
    let heavy = || {
        let scorer = profile
            .scorers
            .iter()
            .find(|scorer| view.has_type(&scorer.plugin, &["session-affinity-scorer"]))?;
        let rest = total_weight(profile) - scorer.weight.abs();
        (scorer.weight > rest).then(|| {
            let (weight, rest) = (plain(scorer.weight), plain(rest));
            format!("'{}' weighs {weight}, more than the {rest} of all others", scorer.plugin)
        })
    };
    let reason = match filter(view, profile, &FILTERS) {
        Some(filter) => format!("'{filter}' keeps one endpoint"),
        None => heavy()?,
    };
    Some(Finding {
        rule: "sessions-pinned",
        message: format!(
            "profile '{}': {reason}, so a session stays at its endpoint however busy that is, and fewer sessions \
             than endpoints leave the others idle",
            profile.name
        ),
        docs: "docs/reference/plugins.md#scorers",
    })
}
