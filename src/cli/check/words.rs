//! A configuration in effect, in sentences.

use std::collections::BTreeSet;

use serde::Serialize;

use super::view::{Stage, View, percent, plain, total_weight};
use crate::registry::{Resolved, ResolvedFlow, ResolvedProfile};

/// Lengths of the prompts in the opening sentences.
const PROMPTS: [u64; 2] = [200, 2_000];

/// A step of a request's way, in sentences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    pub(super) title: String,
    pub(super) sentences: Vec<String>,
}

/// The way of a request through a configuration: the destination in one sentence, then each step.
pub(super) fn explain(resolved: &Resolved) -> Vec<Step> {
    let view = View(resolved);
    let mut steps = vec![
        Step { title: "destination".to_owned(), sentences: destination(view) },
        Step { title: "before a decision".to_owned(), sentences: before(view) },
    ];
    steps.extend(
        resolved
            .profiles
            .iter()
            .map(|profile| Step { title: title(view, profile), sentences: steps_of(view, profile) }),
    );
    steps
}

fn title(view: View<'_>, profile: &ResolvedProfile) -> String {
    let stages = [(Stage::Decode, "decode"), (Stage::Prefill, "prefill"), (Stage::Encode, "encode")];
    let is = |stage| view.profile_of(stage).is_some_and(|of| of.name == profile.name);
    match stages.into_iter().find(|(stage, name)| is(*stage) && *name != profile.name) {
        Some((_, stage)) => format!("profile {} ({stage})", profile.name),
        None => format!("profile {}", profile.name),
    }
}

/// Destination of a prompt.
fn destination(view: View<'_>) -> Vec<String> {
    let resolved = view.0;
    if view.is_disaggregated() {
        let mut sentences = Vec::new();
        if let Some(decode) = view.profile_of(Stage::Decode) {
            sentences.push(format!("Would send a 2,000-token prompt to {}.", target(view, decode)));
        }
        sentences.extend(prefill(view));
        return sentences;
    }
    match &resolved.profiles[..] {
        [only] => vec![format!("Would send a 2,000-token prompt to {}.", target(view, only))],
        _ => vec![format!(
            "Would send a 2,000-token prompt to the pick of one of {} profiles. {}",
            resolved.profiles.len(),
            view.summary(&resolved.profile_handler.plugin)
        )],
    }
}

/// Pick of a profile, as the object of a sentence.
fn target(view: View<'_>, profile: &ResolvedProfile) -> String {
    let weighty: Vec<_> = profile.scorers.iter().filter(|scorer| scorer.weight != 0.0).collect();
    let total = match &weighty[..] {
        [] => None,
        [only] => Some(format!("the score of {}", only.plugin)),
        several => {
            let parts: Vec<String> = several
                .iter()
                .map(|scorer| format!("{} × {}", plain(scorer.weight), scorer.plugin))
                .collect();
            Some(format!("the sum of {}", parts.join(" + ")))
        }
    };
    let left = match &profile.filters[..] {
        [] => "all endpoints".to_owned(),
        filters => format!("the endpoints that {} keep", and(filters)),
    };
    let left = if profile.filters.len() == 1 { left.replace(" keep", " keeps") } else { left };
    let picker = &profile.picker.plugin;
    match (view.type_of(picker), total) {
        ("max-score-picker", Some(total)) => format!("the one of {left} with the highest {}", bare(&total)),
        ("max-score-picker" | "random-picker", None) | ("random-picker", Some(_)) => {
            format!("any of {left}, at random")
        }
        ("weighted-random-picker", Some(total)) => {
            format!("one of {left}, at random in proportion to {total}")
        }
        (_, Some(total)) => format!("the pick of {picker} among {left}, by {total}"),
        (_, None) => format!("the pick of {picker} among {left}"),
    }
}

/// A noun without its article.
fn bare(noun: &str) -> &str {
    noun.strip_prefix("the ").unwrap_or(noun)
}

/// Endpoint that computes a prompt, where stages are apart.
fn prefill(view: View<'_>) -> Vec<String> {
    let Some(profile) = view.profile_of(Stage::Prefill) else {
        return vec!["The same endpoint computes the prompt, as there is no profile for prefill.".to_owned()];
    };
    let target = target(view, profile);
    if view.prefill_comes_first() {
        return vec![format!("Its prompt is computed by {target}.")];
    }
    let Some(decider) = view.prefill_decider() else {
        return vec![match view.is_joint() {
            true => {
                format!("Its prompt is computed by {target}, where the pair costs less than one endpoint.")
            }
            false => "The same endpoint computes the prompt, as prefill has no decider.".to_owned(),
        }];
    };
    let number = |key: &str| view.parameter(decider, key).as_u64().unwrap_or(0);
    match view.type_of(decider) {
        "always-disagg-pd-decider" => vec![format!("Its prompt is computed by {target}.")],
        "prefix-based-pd-decider" => {
            let (new, long) = (number("nonCachedTokens"), number("promptTokens"));
            let is_split = |tokens: u64| new > 0 && tokens >= new && tokens >= long;
            let sentence = |tokens: u64| {
                let who = if is_split(tokens) { target.as_str() } else { "the endpoint that decodes" };
                format!("A prompt of {} tokens that is cached nowhere is computed by {who}.", grouped(tokens))
            };
            PROMPTS.into_iter().map(sentence).collect()
        }
        _ => vec![format!("Where {decider} says so, its prompt is computed by {target}.")],
    }
}

fn grouped(number: u64) -> String {
    usher_terminal::grouped(number)
}

/// Plugins that see a request before the profiles, and flow control.
fn before(view: View<'_>) -> Vec<String> {
    let stages = &view.0.stages;
    let groups = [&stages.header_processors, &stages.gatherers, &stages.screeners, &stages.admitters];
    let mut sentences: Vec<String> = Vec::new();
    for name in groups.into_iter().flatten().filter(|name| view.plugin(name).is_some()) {
        sentences.push(format!("{name}: {}", view.summary(name)));
    }
    let detector = &view.0.saturation_detector.plugin;
    match &view.0.flow_control {
        None => sentences.push(
            "Requests don't wait in Usher: a full pool queues in its model servers, and an empty one is a 503. \
             Only those of a priority below 0 are refused with 429 while the pool is saturated."
                .to_owned(),
        ),
        Some(flow) => sentences.extend(flow_control(view, flow)),
    }
    sentences.push(format!("{detector}: {}", view.summary(detector)));
    sentences
}

fn flow_control(view: View<'_>, flow: &ResolvedFlow) -> Vec<String> {
    let bound = match (flow.max_requests, flow.max_bytes) {
        (None, None) => "as many as each priority allows".to_owned(),
        (Some(requests), None) => format!("at most {} of them", grouped(requests)),
        (None, Some(bytes)) => format!("at most {} bytes of them", grouped(bytes)),
        (Some(requests), Some(bytes)) => {
            format!("at most {} of them with {} bytes", grouped(requests), grouped(bytes))
        }
    };
    let time = |ttl: &Option<String>| ttl.clone().unwrap_or_else(|| "any time".to_owned());
    let mut sentences = vec![format!(
        "Requests wait in Usher while the pool is full, {bound}: {} for room, {} for a first endpoint.",
        time(&flow.default_request_ttl),
        time(&flow.no_endpoint_request_ttl)
    )];
    sentences.push("The highest priority goes first, within it the flow, then its request:".to_owned());
    let policies = flow.bands.iter().flat_map(|band| [&band.fairness_policy, &band.ordering_policy]);
    let mut named = BTreeSet::new();
    for policy in policies.chain([&flow.usage_limit_policy]).filter(|policy| named.insert(&policy.plugin)) {
        sentences.push(format!("{}: {}", policy.plugin, view.summary(&policy.plugin)));
    }
    if flow.enable_eviction {
        let text = "Running requests of priorities below 0 are ended for higher ones that wait, at most two at a time.";
        sentences.push(text.to_owned());
    }
    sentences
}

/// Filters, scorers and picker of a profile.
fn steps_of(view: View<'_>, profile: &ResolvedProfile) -> Vec<String> {
    let mut sentences: Vec<String> =
        profile.filters.iter().map(|name| format!("{name}: {}", view.summary(name))).collect();
    let total = total_weight(profile);
    for scorer in &profile.scorers {
        let (name, weight) = (&scorer.plugin, scorer.weight);
        let weighs = match profile.scorers.len() {
            _ if weight == 0.0 => "has the weight 0 and no effect".to_owned(),
            1 => "decides alone".to_owned(),
            _ => format!("weighs {} of {}, {}", plain(weight), plain(total), percent(weight.abs() / total)),
        };
        let turned = if weight < 0.0 { "The negative weight turns this around: " } else { "" };
        sentences.push(format!("{name} {weighs}: {turned}{}", view.summary(name)));
    }
    if profile.scorers.is_empty() {
        sentences.push("No scorer rates the endpoints, so all that are left are equal.".to_owned());
    }
    let picker = &profile.picker.plugin;
    sentences.push(format!("{picker}: {}", view.summary(picker)));
    sentences
}

/// Names in a row.
fn and(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
