//! The ext_proc filter, and what routes change of it.

use serde_json::Value;

use super::route::Routes;
use crate::doctor::json::{flag, list, seconds, text};

/// Envoy's time for a reply where none is set.
const DEFAULT_MESSAGE_TIMEOUT: f64 = 0.2;

/// Way in which a body is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyMode {
    /// Not at all. The default.
    #[default]
    None,
    /// Chunk by chunk in both directions, as pickers ask for.
    FullDuplex,
    /// Another way: its name.
    Other(&'static str),
}

impl BodyMode {
    fn read(name: &str) -> Self {
        match name {
            "" | "NONE" => Self::None,
            "FULL_DUPLEX_STREAMED" => Self::FullDuplex,
            "STREAMED" => Self::Other("STREAMED"),
            "BUFFERED" => Self::Other("BUFFERED"),
            "BUFFERED_PARTIAL" => Self::Other("BUFFERED_PARTIAL"),
            "GRPC" => Self::Other("GRPC"),
            _ => Self::Other("a mode that is not known here"),
        }
    }

    /// Name of the mode.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::FullDuplex => "FULL_DUPLEX_STREAMED",
            Self::Other(name) => name,
        }
    }
}

/// An ext_proc filter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Processor {
    /// Name of the filter.
    pub name: String,
    /// Off, unless a route turns it on.
    pub disabled: bool,
    /// Settings of the filter.
    pub settings: Settings,
    /// Routes that change it: where, and what it does there; `None` turns it off.
    pub overrides: Vec<(String, Option<Settings>)>,
}

/// Settings of an ext_proc filter.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Cluster of the picker; empty for a client of Google's.
    pub cluster: String,
    /// Requests go on when the picker fails.
    pub fails_open: bool,
    /// The request's headers are sent.
    pub request_headers: bool,
    /// The response's headers are sent.
    pub response_headers: bool,
    /// Way in which the request's body is sent.
    pub request_body: BodyMode,
    /// Way in which the response's body is sent.
    pub response_body: BodyMode,
    /// Trailers of the request and of the response are sent.
    pub trailers: [bool; 2],
    /// Time for a reply, seconds.
    pub message_timeout: f64,
    /// Asynchronous: requests don't wait for the picker.
    pub observes: bool,
    /// The route that was found before the picker is kept.
    pub keeps_route: bool,
    /// Mutations of headers may be refused.
    pub refuses_mutations: bool,
    /// Metadata of these namespaces is taken from the picker.
    pub receives: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            fails_open: false,
            request_headers: true,
            response_headers: true,
            request_body: BodyMode::None,
            response_body: BodyMode::None,
            trailers: [false; 2],
            message_timeout: DEFAULT_MESSAGE_TIMEOUT,
            observes: false,
            keeps_route: false,
            refuses_mutations: false,
            receives: Vec::new(),
        }
    }
}

impl Processor {
    pub(super) fn read(filter: &Value, config: &Value, routes: &Routes) -> Self {
        let name = text(filter, "name").to_owned();
        let settings = Settings::default().changed(config);
        let overrides = routes.overrides(&name).map(|(place, config)| {
            // A wrapper, which may do no more than turn the filter off or on.
            let is_off = flag(config, "disabled");
            let inner = if text(config, "@type").ends_with(".FilterConfig") {
                config.get("config").unwrap_or(&Value::Null)
            } else {
                config
            };
            let is_off = is_off || flag(inner, "disabled");
            let changes = inner.get("overrides").unwrap_or(&Value::Null);
            (place.to_owned(), (!is_off).then(|| settings.clone().changed(changes)))
        });
        let overrides = overrides.collect();
        Self { name, disabled: flag(filter, "disabled"), settings, overrides }
    }

    /// Places where it works, and what it does there.
    pub fn effective(&self) -> impl Iterator<Item = (String, &Settings)> {
        let base = (!self.disabled).then(|| (format!("filter {}", self.name), &self.settings));
        let of = |(place, settings): &'_ (String, Option<Settings>)| {
            format!("filter {} at {place}{}", self.name, if settings.is_some() { "" } else { " (off)" })
        };
        base.into_iter()
            .chain(self.overrides.iter().filter_map(move |each| Some((of(each), each.1.as_ref()?))))
    }

    /// Routes that go past it.
    pub fn off_at(&self) -> impl Iterator<Item = &str> {
        self.overrides.iter().filter(|(_, settings)| settings.is_none()).map(|(place, _)| place.as_str())
    }
}

impl Settings {
    /// With what a configuration says; what it doesn't mention stays.
    fn changed(mut self, config: &Value) -> Self {
        if let Some(cluster) = config.pointer("/grpc_service/envoy_grpc/cluster_name").and_then(Value::as_str)
        {
            cluster.clone_into(&mut self.cluster);
        }
        if let Some(allow) = config.get("failure_mode_allow").and_then(Value::as_bool) {
            self.fails_open = allow;
        }
        if let Some(mode) = config.get("processing_mode") {
            let is_sent = |name: &str, usual: bool| match text(mode, name) {
                "SEND" => true,
                "SKIP" => false,
                _ => usual,
            };
            self.request_headers = is_sent("request_header_mode", true);
            self.response_headers = is_sent("response_header_mode", true);
            self.trailers = [is_sent("request_trailer_mode", false), is_sent("response_trailer_mode", false)];
            self.request_body = BodyMode::read(text(mode, "request_body_mode"));
            self.response_body = BodyMode::read(text(mode, "response_body_mode"));
        }
        self.message_timeout = seconds(config, "message_timeout").unwrap_or(self.message_timeout);
        self.observes |= flag(config, "observability_mode");
        self.keeps_route |=
            flag(config, "disable_clear_route_cache") || text(config, "route_cache_action") == "RETAIN";
        if let Some(rules) = config.get("mutation_rules") {
            self.refuses_mutations =
                flag(rules, "disallow_all") || rules.get("disallow_expression").is_some();
        }
        if let Some(untyped) = config.pointer("/metadata_options/receiving_namespaces") {
            self.receives =
                list(untyped, "untyped").iter().filter_map(Value::as_str).map(str::to_owned).collect();
        }
        self
    }
}
