//! Prefill and decode apart, without what keeps them apart or brings them together.

use super::finding::Finding;
use crate::cli::check::view::{Stage, View};
use crate::registry::ResolvedProfile;

type Rule = fn(View<'_>) -> Option<Finding>;

pub(super) const RULES: [Rule; 6] = [no_decider, never, always, decode_anywhere, prefill_anywhere, unnamed];

/// Filters that tell roles apart, by the role label or another one.
const BY_LABEL: [&str; 3] = ["label-selector-filter", "by-label-selector", "by-label"];

const APART: &str = "docs/guide/prefix-and-pairs.md#prefill-and-decode-apart";
const HANDLERS: &str = "docs/reference/plugins.md#profile-handlers-and-deciders";

/// Prefill never runs.
fn no_decider(view: View<'_>) -> Option<Finding> {
    let prefill = view.profile_of(Stage::Prefill)?;
    if view.prefill_decider().is_some() || view.is_joint() || view.prefill_comes_first() {
        return None;
    }
    Some(Finding {
        rule: "prefill-without-decider",
        message: format!(
            "profile '{}' never runs, as no decider says when: prefill endpoints stay idle, and decode endpoints \
             compute all prompts; name one in deciders.prefill",
            prefill.name
        ),
        docs: APART,
    })
}

fn never(view: View<'_>) -> Option<Finding> {
    view.profile_of(Stage::Prefill)?;
    let decider = view.prefill_decider()?;
    let is_zero = view.has_type(decider, &["prefix-based-pd-decider"])
        && view.parameter(decider, "nonCachedTokens").as_u64() == Some(0);
    is_zero.then(|| Finding {
        rule: "prefill-never",
        message: format!(
            "'{decider}' says no to every prompt, as nonCachedTokens is 0, its default: prefill endpoints stay idle"
        ),
        docs: HANDLERS,
    })
}

/// Pairs compete with the decode endpoint alone only if the decider may say no.
fn always(view: View<'_>) -> Option<Finding> {
    let decider = view.prefill_decider().filter(|name| view.has_type(name, &["always-disagg-pd-decider"]))?;
    view.is_joint().then(|| Finding {
        rule: "pairs-without-choice",
        message: format!(
            "'{decider}' sends every prompt to a prefill endpoint, also while these queue and decode endpoints \
             don't. In replay at 80 % load (chunked-prefill, seed 2) the p90 of TTFT was 3.151 s, without a decider \
             0.755 s; the p99 of TPOT 18.6 instead of 30.8 ms"
        ),
        docs: "docs/guide/prefix-and-pairs.md#pairs",
    })
}

/// Returns `true` if a profile has a filter by role.
fn filters_by_role(view: View<'_>, profile: &ResolvedProfile, role: &str) -> bool {
    profile.filters.iter().any(|name| view.has_type(name, &[role]) || view.has_type(name, &BY_LABEL))
}

fn decode_anywhere(view: View<'_>) -> Option<Finding> {
    // Without a profile for prefill nothing is apart.
    view.profile_of(Stage::Prefill)?;
    let profile = view.profile_of(Stage::Decode)?;
    (!filters_by_role(view, profile, "decode-filter")).then(|| Finding {
        rule: "decode-without-role",
        message: format!(
            "profile '{}' has no filter by role, so responses may be asked of endpoints that only compute \
             prompts; add decode-filter",
            profile.name
        ),
        docs: APART,
    })
}

fn prefill_anywhere(view: View<'_>) -> Option<Finding> {
    let profile = view.profile_of(Stage::Prefill)?;
    (!filters_by_role(view, profile, "prefill-filter")).then(|| Finding {
        rule: "prefill-without-role",
        message: format!(
            "profile '{}' has no filter by role, so prompts may be computed by endpoints that decode; add \
             prefill-filter",
            profile.name
        ),
        docs: APART,
    })
}

/// The sidecar never learns of the prefill endpoint.
fn unnamed(view: View<'_>) -> Option<Finding> {
    const WRITERS: [&str; 2] = ["disagg-headers-handler", "prefill-header-handler"];
    let handler = &view.0.profile_handler.plugin;
    let writes = view.0.plugins.iter().any(|plugin| WRITERS.contains(&plugin.plugin_type));
    (view.has_type(handler, &["pd-profile-handler"]) && !writes).then(|| Finding {
        rule: "prefill-unnamed",
        message: format!(
            "'{handler}' picks a prefill endpoint that no plugin names in a header, so sidecars never ask it; \
             declare prefill-header-handler, or use disagg-profile-handler"
        ),
        docs: HANDLERS,
    })
}
