//! Human-readable report of a checked configuration.

use std::fmt::Write as _;

use serde_json::Value;
use usher_terminal::fit;

use super::config::Config;
use super::findings::Finding;
use super::sample::Sample;
use super::words::Step;
use crate::registry::{Origin, ResolvedBand, ResolvedFlow, ResolvedPlugin, ResolvedProfile, Stability, Use};

/// Column of texts that have a title.
const TEXT: usize = 18;
/// Column of what is said about a plugin.
const DETAIL: usize = 14;

/// The report, for a terminal of so many columns. `without_discovery` stands where the configuration names no plugin that
/// finds endpoints.
pub(super) fn text(title: &str, config: &Config, without_discovery: &str, width: Option<usize>) -> String {
    let Config { resolved, warnings, notes, findings, steps, samples, .. } = config;
    let mut report = Report { text: String::new(), width };
    report.wrapped("", title);
    let findings = findings.iter().map(Finding::text);
    let warnings: Vec<String> = warnings.iter().cloned().chain(findings).collect();
    report.sentences("warnings", &warnings);
    for Step { title, sentences } in steps {
        report.sentences(title, sentences);
    }
    if let Some(samples) = samples {
        let sentences: Vec<String> = samples.iter().map(Sample::sentence).collect();
        report.sentences("tried", &sentences);
    }
    report.text.push('\n');
    report.list("parsers", resolved.parsers.iter().map(used));
    report.list("headers", resolved.stages.header_processors.iter().cloned());
    report.list("gatherers", resolved.stages.gatherers.iter().cloned());
    report.list("screeners", resolved.stages.screeners.iter().cloned());
    report.list("producers", resolved.stages.producers.iter().cloned());
    report.list("admitters", resolved.stages.admitters.iter().cloned());
    report.list("profile handler", [used(&resolved.profile_handler)]);
    resolved.profiles.iter().for_each(|profile| report.profile(profile));
    report.list("on a decision", resolved.stages.pre_request.iter().cloned());
    report.list("discovery", [resolved.discovery.as_ref().map_or(without_discovery.to_owned(), used)]);
    report.list("state sharing", resolved.syncer.iter().map(used));
    let sources = resolved.sources.iter();
    report.list(
        "data sources",
        sources.map(|source| format!("{} → {}", used(&source.source), source.extractors.join(", "))),
    );
    report.list("saturation", [used(&resolved.saturation_detector)]);
    if let Some(flow) = &resolved.flow_control {
        report.flow(flow);
    }
    let gates = &resolved.feature_gates;
    let gates = [
        ("flowControl", gates.flow_control),
        ("haPopulateNonLeaderDatastore", gates.ha_populate_non_leader_datastore),
    ];
    report.list("feature gates", gates.map(|(name, on)| format!("{name}={on}")));
    report.text.push_str("\nplugins\n");
    resolved.plugins.iter().for_each(|plugin| report.plugin(plugin));
    report.sentences("notes", notes);
    report.text
}

/// The report as it is put together. Writing to a string can't fail.
struct Report {
    text: String,
    width: Option<usize>,
}

impl Report {
    /// Texts below each other, the first one behind the title. Nothing without texts.
    fn list(&mut self, title: &str, texts: impl IntoIterator<Item = String>) {
        let mut title = title;
        for text in texts {
            self.wrapped(&format!("{title:<TEXT$}"), &text);
            title = "";
        }
    }

    /// A section of sentences, unless there are none.
    fn sentences(&mut self, title: &str, sentences: &[String]) {
        if !sentences.is_empty() {
            let _ = write!(self.text, "\n{title}\n");
        }
        sentences.iter().for_each(|sentence| self.wrapped("  - ", sentence));
    }

    fn profile(&mut self, profile: &ResolvedProfile) {
        self.list("profile", [format!("{}{}", profile.name, mark(profile.defaulted))]);
        self.list("  filters", profile.filters.iter().cloned());
        let scorers = profile.scorers.iter();
        self.list(
            "  scorers",
            scorers.map(|scorer| format!("{} × {}{}", scorer.plugin, scorer.weight, mark(scorer.defaulted))),
        );
        self.list("  picker", [used(&profile.picker)]);
    }

    fn flow(&mut self, flow: &ResolvedFlow) {
        let limit = |limit: Option<u64>, of: &str| match limit {
            Some(limit) => format!("{limit} {of}"),
            None => format!("any number of {of}"),
        };
        let ttl = |ttl: &Option<String>| ttl.clone().unwrap_or_else(|| "ever".to_owned());
        let (room, endpoint) = (ttl(&flow.default_request_ttl), ttl(&flow.no_endpoint_request_ttl));
        let evicts = flow.enable_eviction.then(|| "evicts requests of priorities below 0".to_owned());
        let texts = [
            format!("{} and {}", limit(flow.max_requests, "requests"), limit(flow.max_bytes, "bytes")),
            format!("wait for room for {room}, for an endpoint for {endpoint}"),
        ];
        self.list("flow control", texts.into_iter().chain(evicts));
        self.list("  ceilings", [used(&flow.usage_limit_policy)]);
        self.list(
            "  priorities",
            flow.bands.iter().map(|band| {
                let ResolvedBand { priority, max_requests, max_bytes, .. } = band;
                let (fairness, ordering) = (used(&band.fairness_policy), used(&band.ordering_policy));
                format!("{priority}: {max_requests} requests, {max_bytes} bytes, {fairness}, {ordering}")
            }),
        );
    }

    /// Name, type, origin; then its parameters, what it reads and what it produces.
    fn plugin(&mut self, plugin: &ResolvedPlugin) {
        let mut text = plugin.name.clone();
        if plugin.name != plugin.plugin_type {
            let _ = write!(text, ": {}", plugin.plugin_type);
        }
        let _ = match plugin.origin {
            Origin::Declared(at) => write!(text, " (line {})", at.line),
            Origin::Defaulted => write!(text, "{}", mark(true)),
        };
        if plugin.stability == Stability::Alpha {
            text.push_str(" (experimental)");
        }
        if let Some(other) = plugin.deprecated {
            let _ = write!(text, " (deprecated, use {other})");
        }
        self.wrapped("  ", &text);
        self.detail("set", &parameters(plugin, false));
        self.detail("default", &parameters(plugin, true));
        for data in &plugin.reads {
            self.detail("reads", &format!("{} from {}", data.data, data.producer));
        }
        let produced: Vec<String> = plugin.produces.iter().map(ToString::to_string).collect();
        self.detail("produces", &produced.join(", "));
    }

    fn detail(&mut self, title: &str, text: &str) {
        if !text.is_empty() {
            self.wrapped(&format!("{:<DETAIL$}", format!("    {title}")), text);
        }
    }

    /// Words behind a start, the lines that follow as far in as the first.
    fn wrapped(&mut self, start: &str, text: &str) {
        let indent = start.chars().count();
        let mut start = start.to_owned();
        for line in fit(text, self.width, indent) {
            // Writing to a string can't fail.
            let _ = writeln!(self.text, "{}", format!("{start:indent$}{line}").trim_end());
            start.clear();
        }
    }
}

/// The parameters that the configuration sets, or those that it doesn't.
fn parameters(plugin: &ResolvedPlugin, defaulted: bool) -> String {
    let Value::Object(all) = &plugin.parameters else { return String::new() };
    let of = all
        .iter()
        .filter(|(key, value)| plugin.defaulted_parameters.contains(key) == defaulted && !value.is_null());
    // Lines are broken at spaces, and lists and maps may be long.
    let shown = |value: &Value| value.to_string().replace(",\"", ", \"").replace(",{", ", {");
    let of: Vec<String> = of.map(|(key, value)| format!("{key}={}", shown(value))).collect();
    of.join(" ")
}

fn mark(defaulted: bool) -> &'static str {
    if defaulted { " (default)" } else { "" }
}

fn used(plugin: &Use) -> String {
    format!("{}{}", plugin.plugin, mark(plugin.defaulted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_filled_and_indented() {
        let mut report = Report { text: String::new(), width: None };
        let words = ["twelve-chars"; 9].join(" ");
        report.wrapped("  - ", &words);
        let five = ["twelve-chars"; 5].join(" ");
        let four = ["twelve-chars"; 4].join(" ");
        assert_eq!(report.text, format!("  - {five}\n    {four}\n"));
        assert!(report.text.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn long_word_gets_its_own_lines() {
        let long = "x".repeat(100);
        let wrapped = |width| {
            let mut report = Report { text: String::new(), width };
            report.wrapped("name  ", &format!("a {long} b"));
            report.text
        };
        assert_eq!(wrapped(None), format!("name  a\n      {long}\n      b\n"));
        let (one, other) = long.split_at(54);
        assert_eq!(wrapped(Some(60)), format!("name  a\n      {one}\n      {other}\n      b\n"));
    }
}
