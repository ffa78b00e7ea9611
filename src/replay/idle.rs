//! Plugins and profiles that can never act in a replay, as its requests and servers lack what they go by.

use usher_core::endpoints::{PLACE_LABELS, ROLE_LABEL, Role};
use usher_lab::replay::Server;

use crate::registry::{Origin, Resolved, ResolvedPlugin, ResolvedProfile};

/// Input of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Session,
    Header,
    Adapter,
    Media,
    Sheddable,
    Targets,
    Prefill,
    Roles,
    Places,
    /// The label that its parameter `label` names.
    Label,
    Ranks,
    /// The text of prompts; only with parameters that have it tokenized.
    Text,
    KvEvents,
}

/// Inputs of plugin types that a replay may lack.
const NEEDS: [(&str, Need); 29] = [
    ("session-affinity-scorer", Need::Session),
    ("session-affinity-filter", Need::Session),
    ("multicluster-session-affinity-filter", Need::Session),
    ("session-id-producer", Need::Session),
    ("agent-identity", Need::Session),
    ("header-label-affinity-scorer", Need::Header),
    ("header-based-testing-filter", Need::Header),
    ("header-profile-handler", Need::Header),
    ("lora-affinity-scorer", Need::Adapter),
    ("mm-embeddings-cache-scorer", Need::Media),
    ("mm-embeddings-cache-producer", Need::Media),
    ("always-disagg-multimodal-decider", Need::Media),
    ("encode-filter", Need::Media),
    ("latency-slo-admitter", Need::Sheddable),
    ("probabilistic-admitter", Need::Sheddable),
    ("slo-headroom-tier-filter", Need::Targets),
    ("prefill-filter", Need::Prefill),
    ("always-disagg-pd-decider", Need::Prefill),
    ("prefix-based-pd-decider", Need::Prefill),
    ("decode-filter", Need::Roles),
    ("topology-affinity-filter", Need::Places),
    ("topology-affinity-scorer", Need::Places),
    ("topology-extractor", Need::Places),
    ("context-length-aware", Need::Label),
    ("data-parallel-profile-handler", Need::Ranks),
    ("token-producer", Need::Text),
    ("tokenizer", Need::Text),
    ("precise-prefix-cache-producer", Need::KvEvents),
    ("precise-prefix-cache-scorer", Need::KvEvents),
];

/// A plugin that removes every candidate of its profile where its need isn't met.
const GATES: [&str; 2] = ["prefill-filter", "encode-filter"];

/// Parameters of a token producer that tokenizes; without them it estimates by the length.
const TOKENIZERS: [&str; 2] = ["vllm", "local"];

/// The handler whose other profiles than the default one run for requests with a header.
const BY_HEADER: &str = "header-profile-handler";

impl Need {
    /// `None` where servers and requests have it.
    fn lack(self, plugin: &ResolvedPlugin, servers: &[Server], has_targets: bool) -> Option<String> {
        let roles = |is: fn(Role) -> bool| {
            servers
                .iter()
                .any(|server| is(Role::from_label(server.labels.get(ROLE_LABEL).map(String::as_str))))
        };
        let has_label = |key: &str| servers.iter().any(|server| server.labels.contains_key(key));
        let text = match self {
            Self::Session => "no request names a session",
            Self::Header => "no request has such a header",
            Self::Adapter => "no request asks for an adapter",
            Self::Media => "no request has images, audio or video",
            Self::Sheddable => "no request has a priority below 0",
            Self::Targets if !has_targets => "no request names latency targets",
            Self::Prefill if !roles(|role| role.prefill) => "no server has a role for prefill",
            Self::Roles if !has_label(ROLE_LABEL) => "no server has a role",
            Self::Places if !PLACE_LABELS.iter().any(|key| has_label(key)) => "no server says where it is",
            Self::Label => {
                let key = plugin.parameters.get("label")?.as_str()?;
                return (!has_label(key)).then(|| format!("no server has the label {key}"));
            }
            Self::Ranks => "no server has several ranks",
            Self::Text if TOKENIZERS.iter().any(|key| plugin.parameters.get(key).is_some()) => {
                "no request has text to tokenize"
            }
            Self::KvEvents => "no server publishes KV events",
            Self::Targets | Self::Prefill | Self::Roles | Self::Places | Self::Text => return None,
        };
        Some(text.to_owned())
    }
}

/// A sentence about the declared plugins and the profiles that can never act on these servers, and on requests
/// that name latency targets or don't. `None`: there is none.
pub(super) fn sentence(resolved: &Resolved, servers: &[Server], has_targets: bool) -> Option<String> {
    let lack = |plugin: &ResolvedPlugin| {
        let need = NEEDS.iter().find(|(name, _)| *name == plugin.plugin_type)?.1;
        need.lack(plugin, servers, has_targets)
    };
    let find = |name: &str| resolved.plugins.iter().find(|plugin| plugin.name == name);
    let gate = |profile: &ResolvedProfile| {
        let filters = profile.filters.iter().filter_map(|name| find(name));
        filters.filter(|plugin| GATES.contains(&plugin.plugin_type)).find_map(lack)
    };
    let by_header = find(&resolved.profile_handler.plugin).filter(|plugin| plugin.plugin_type == BY_HEADER);
    let unasked = |profile: &ResolvedProfile| {
        let default = by_header?.parameters.get("defaultProfile")?.as_str()?;
        (profile.name != default).then(|| lack(by_header?)).flatten()
    };
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    let mut add = |lack: String, what: String| match groups.iter_mut().find(|(known, _)| *known == lack) {
        Some((_, all)) => all.push(what),
        None => groups.push((lack, vec![what])),
    };
    let mut of_idle: Vec<&str> = Vec::new();
    let mut of_others: Vec<&str> = Vec::new();
    for profile in &resolved.profiles {
        let uses = profile.filters.iter().chain(profile.scorers.iter().map(|scorer| &scorer.plugin));
        match gate(profile).or_else(|| unasked(profile)) {
            Some(lack) => {
                add(lack, format!("profile '{}'", profile.name));
                of_idle.extend(uses.map(String::as_str));
            }
            None => of_others.extend(uses.map(String::as_str)),
        }
    }
    for plugin in &resolved.plugins {
        let name = plugin.name.as_str();
        let is_said = of_idle.contains(&name) && !of_others.contains(&name);
        if plugin.origin == Origin::Defaulted || is_said {
            continue;
        }
        if let Some(lack) = lack(plugin) {
            add(lack, format!("'{name}'"));
        }
    }
    let part = |(lack, all): &(String, Vec<String>)| {
        let verb = if all.len() == 1 { "acts" } else { "act" };
        format!("{lack}, so {} never {verb}", all.join(" and "))
    };
    let parts: Vec<String> = groups.iter().map(part).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use usher_core::config::EndpointPickerConfig;
    use usher_core::endpoints::Clock;
    use usher_lab::sim::EngineConfig;

    use super::*;
    use crate::registry::{Pipeline, find_type};
    use crate::schedule::{SchedulerMetrics, State};

    fn said(text: &str, labels: &[(&str, &str)], has_targets: bool) -> Option<String> {
        let config = EndpointPickerConfig::parse(text).unwrap();
        let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
        let state = State::new(Clock::stopped());
        let pipeline = Pipeline::build(Some(&config), true, &metrics, &state).unwrap();
        let mut servers = Server::equal(2, &EngineConfig::default());
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        servers[0].labels.extend(labels);
        sentence(&pipeline.resolved, &servers, has_targets)
    }

    #[test]
    fn every_listed_plugin_type_exists() {
        for (name, _) in NEEDS {
            assert!(find_type(name).is_some(), "{name}");
        }
    }

    #[test]
    fn plugins_idle_for_lack_of_request_data_are_named() {
        let session = include_str!("../../deploy/config/session-affinity.yaml");
        let expected = "no request names a session, so 'session-affinity-scorer' never acts";
        assert_eq!(said(session, &[], false).as_deref(), Some(expected));
        let tiers = "plugins: [{type: slo-headroom-tier-filter}, {type: latency-scorer}]\n";
        let expected = "no request names latency targets, so 'slo-headroom-tier-filter' never acts";
        assert_eq!(said(tiers, &[], false).as_deref(), Some(expected));
        assert_eq!(said(tiers, &[], true), None);
    }

    #[test]
    fn plugins_idle_for_lack_of_tokens_and_kv_events_are_named() {
        let precise = include_str!("../../deploy/config/precise.yaml");
        let expected = "no request has text to tokenize, so 'token-producer' never acts; no server publishes KV \
                        events, so 'precise-prefix-cache-producer' never acts";
        assert_eq!(said(precise, &[], false).as_deref(), Some(expected));
        let scorer = "plugins: [{type: token-producer, parameters: {modelName: m, vllm: {url: 'http://a:1'}}}, \
                      {type: precise-prefix-cache-scorer}]\n";
        let text = said(scorer, &[], false).unwrap();
        assert!(
            text.ends_with("no server publishes KV events, so 'precise-prefix-cache-scorer' never acts"),
            "{text}"
        );
        let estimate = "plugins: [{type: token-producer}, {type: queue-scorer}]\n";
        assert_eq!(said(estimate, &[], false), None);
    }

    #[test]
    fn profile_without_candidates_is_named_for_its_plugins() {
        let pd = include_str!("../../deploy/config/pd.yaml");
        let expected = "no server has a role for prefill, so profile 'prefill' and \
                        'always-disagg-pd-decider' never act; no server has a role, so 'decode-filter' never acts";
        assert_eq!(said(pd, &[], false).as_deref(), Some(expected));
        assert_eq!(said(pd, &[(ROLE_LABEL, "prefill")], false), None);
        let epd = include_str!("../../deploy/config/epd.yaml");
        let expected = "no request has images, audio or video, so profile 'encode' and \
                        'always-disagg-multimodal-decider' never act";
        assert_eq!(said(epd, &[(ROLE_LABEL, "prefill")], false).as_deref(), Some(expected));
        let by_header = "
plugins: [{type: header-profile-handler, parameters: {defaultProfile: a}}, {type: queue-scorer}]
schedulingProfiles:
- {name: a, plugins: [{pluginRef: queue-scorer}]}
- {name: b, plugins: [{pluginRef: queue-scorer}]}
";
        let expected = "no request has such a header, so profile 'b' and 'header-profile-handler' never act";
        assert_eq!(said(by_header, &[], false).as_deref(), Some(expected));
    }

    #[test]
    fn plugins_idle_for_lack_of_labels_are_named() {
        let ranges = include_str!("../../deploy/config/context-length.yaml");
        let label = "llm-d.ai/context-length-range";
        let expected = format!("no server has the label {label}, so 'context-length-aware' never acts");
        assert_eq!(said(ranges, &[], false), Some(expected));
        assert_eq!(said(ranges, &[(label, "0-100")], false), None);
        let topology = include_str!("../../deploy/config/pd-topology.yaml");
        let labels = [(ROLE_LABEL, "prefill"), (PLACE_LABELS[2], "a")];
        assert_eq!(said(topology, &labels, false), None);
    }
}
