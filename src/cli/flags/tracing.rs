//! Traces, by the standard variables of OpenTelemetry.
//!
//! A value that can't be used counts for nothing and is remarked on, as OpenTelemetry asks for: traces never keep a
//! picker from serving.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};

use crate::settings::{OtlpEndpoint, OtlpSettings, SamplerSettings, Secret, TracingSettings};

/// Service name of llm-d-router in traces.
const SERVICE: &str = "llm-d-epp";

/// Part of the requests that are traced by default, as in llm-d-router.
const RATIO: f64 = 0.1;

const DEFAULT_ENDPOINT: &str = "http://localhost:4317";

/// Most spans that may wait, whatever a variable says.
const MOST_QUEUED: u64 = 1 << 16;

/// Reads the variables; `enabled`: the flag `--tracing`.
pub(super) fn settings(enabled: bool, variables: &BTreeMap<String, String>) -> TracingSettings {
    let mut reader = Reader { variables, notes: Vec::new() };
    let export = (enabled && reader.exports()).then(|| reader.export()).flatten();
    TracingSettings { export, notes: reader.notes }
}

struct Reader<'a> {
    variables: &'a BTreeMap<String, String>,
    notes: Vec<String>,
}

impl<'a> Reader<'a> {
    /// Value of a variable; an empty one counts as missing.
    fn get(&self, name: &str) -> Option<&'a str> {
        self.variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// Value of `OTEL_EXPORTER_OTLP_TRACES_…`, or else of `OTEL_EXPORTER_OTLP_…`, with its name.
    fn otlp(&self, name: &str) -> Option<(String, &'a str)> {
        ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"].iter().find_map(|prefix| {
            let name = format!("{prefix}{name}");
            self.get(&name).map(|value| (name, value))
        })
    }

    fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Returns `true` if spans are exported: where a variable names OTLP or a collector.
    fn exports(&mut self) -> bool {
        if self.get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return false;
        }
        match self.get("OTEL_TRACES_EXPORTER") {
            Some("otlp") => true,
            Some("none") => false,
            None => self.otlp("ENDPOINT").is_some(),
            Some(other) => {
                self.note(format!("OTEL_TRACES_EXPORTER: {other:?} is no exporter here, so nothing is traced; write otlp or none"));
                false
            }
        }
    }

    fn export(&mut self) -> Option<OtlpSettings> {
        let endpoint = self.endpoint()?;
        if let Some((name, protocol)) = self.otlp("PROTOCOL").filter(|(_, protocol)| *protocol != "grpc") {
            self.note(format!("{name}: {protocol:?} is not spoken here; spans go out as grpc"));
        }
        let path = |found: Option<(String, &str)>| found.map(|(_, path)| path.into());
        let client_cert = match (path(self.otlp("CLIENT_CERTIFICATE")), path(self.otlp("CLIENT_KEY"))) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                self.note("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY count only together".to_owned());
                None
            }
        };
        let timeout = self.otlp("TIMEOUT").map(|(name, _)| name);
        let timeout = timeout.map_or(10_000, |name| self.number(&name, 10_000, 1, 600_000));
        let max_queue = self.number("OTEL_BSP_MAX_QUEUE_SIZE", 2048, 1, MOST_QUEUED) as usize;
        let max_batch = self.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, 1, MOST_QUEUED) as usize;
        let delay = self.number("OTEL_BSP_SCHEDULE_DELAY", 5000, 1, 600_000);
        Some(OtlpSettings {
            endpoint,
            headers: self.headers(),
            ca_file: path(self.otlp("CERTIFICATE")),
            client_cert,
            timeout: Duration::from_millis(timeout),
            sampler: self.sampler(),
            resource: self.resource(),
            delay: Duration::from_millis(delay),
            max_queue,
            max_batch: max_batch.min(max_queue),
        })
    }

    fn endpoint(&mut self) -> Option<OtlpEndpoint> {
        let (name, text) =
            self.otlp("ENDPOINT").unwrap_or(("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), DEFAULT_ENDPOINT));
        let insecure = self.otlp("INSECURE").is_some_and(|(_, value)| value.eq_ignore_ascii_case("true"));
        let endpoint = endpoint(text, insecure);
        if endpoint.is_none() {
            self.note(format!("{name}: not a URL such as http://collector:4317 or https://collector:4317, so nothing is traced"));
        }
        endpoint
    }

    /// A whole number in these bounds.
    fn number(&mut self, name: &str, default: u64, least: u64, most: u64) -> u64 {
        let Some(text) = self.get(name) else { return default };
        match text.parse() {
            Ok(number) if (least..=most).contains(&number) => number,
            _ => {
                self.note(format!("{name}: {text:?} is no number from {least} to {most}; it is {default}"));
                default
            }
        }
    }

    /// Headers of exports. Remarks name no value: it may be a credential.
    fn headers(&mut self) -> Vec<(String, Secret)> {
        let Some((name, text)) = self.otlp("HEADERS") else { return Vec::new() };
        let mut headers = Vec::new();
        for (position, pair) in pairs(text).enumerate() {
            let header = pair.and_then(|(key, value)| {
                let key = HeaderName::try_from(key).ok()?;
                HeaderValue::try_from(&value).ok()?;
                Some((key.as_str().to_owned(), Secret(value)))
            });
            match header {
                Some(header) => headers.push(header),
                None => self.note(format!("{name}: entry {} is no header; write name=value", position + 1)),
            }
        }
        headers
    }

    fn sampler(&mut self) -> SamplerSettings {
        let of = |ratio, parent_based| SamplerSettings { ratio, parent_based };
        match self.get("OTEL_TRACES_SAMPLER") {
            Some("always_on") => of(1.0, false),
            Some("always_off") => of(0.0, false),
            Some("parentbased_always_on") => of(1.0, true),
            Some("parentbased_always_off") => of(0.0, true),
            Some("traceidratio") => of(self.ratio(), false),
            None | Some("parentbased_traceidratio") => of(self.ratio(), true),
            Some(other) => {
                self.note(format!(
                    "OTEL_TRACES_SAMPLER: {other:?} is no sampler here; it is parentbased_traceidratio"
                ));
                of(self.ratio(), true)
            }
        }
    }

    fn ratio(&mut self) -> f64 {
        let Some(text) = self.get("OTEL_TRACES_SAMPLER_ARG") else { return RATIO };
        match text.parse() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
            _ => {
                self.note(format!(
                    "OTEL_TRACES_SAMPLER_ARG: {text:?} is no number from 0 to 1; it is {RATIO}"
                ));
                RATIO
            }
        }
    }

    fn resource(&mut self) -> Vec<(String, String)> {
        let mut resource = Vec::new();
        for pair in pairs(self.get("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default()) {
            match pair {
                Some(pair) => resource.push(pair),
                None => {
                    // One that is broken makes all of them so, as OpenTelemetry has it.
                    self.note("OTEL_RESOURCE_ATTRIBUTES: not of the form name=value,name=value".to_owned());
                    resource.clear();
                    break;
                }
            }
        }
        let named = resource.iter().any(|(key, _)| key == "service.name");
        if let Some(name) = self.get("OTEL_SERVICE_NAME").or((!named).then_some(SERVICE)) {
            resource.retain(|(key, _)| key != "service.name");
            resource.push(("service.name".to_owned(), name.to_owned()));
        }
        resource
    }
}

/// Reads a URL; without a scheme it is over TLS unless `insecure`.
fn endpoint(text: &str, insecure: bool) -> Option<OtlpEndpoint> {
    let text = if text.contains("://") {
        text.to_owned()
    } else {
        format!("{}://{text}", if insecure { "http" } else { "https" })
    };
    let uri: Uri = text.parse().ok()?;
    let tls = match uri.scheme_str()? {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    let has_user = uri.authority()?.as_str().contains('@');
    (!host.is_empty() && !has_user).then(|| OtlpEndpoint {
        tls,
        host: host.to_owned(),
        port: uri.port_u16().unwrap_or(4317),
    })
}

/// Entries of a list `name=value,name=value`, percent-decoded; `None` for one that is none.
fn pairs(text: &str) -> impl Iterator<Item = Option<(String, String)>> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(|entry| {
        let (key, value) = entry.split_once('=')?;
        let (key, value) = (decoded(key.trim())?, decoded(value.trim())?);
        (!key.is_empty()).then_some((key, value))
    })
}

/// The text that percent-encoding stands for.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push((digit()? * 16 + digit()?) as u8);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> TracingSettings {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        settings(true, &variables.collect())
    }

    fn export(variables: &[(&str, &str)]) -> OtlpSettings {
        let settings = read(&[&[("OTEL_TRACES_EXPORTER", "otlp")], variables].concat());
        assert_eq!(settings.notes, Vec::<String>::new());
        settings.export.unwrap()
    }

    #[test]
    fn tracing_needs_a_collector() {
        let collector = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
        assert_eq!(read(&[]), TracingSettings::default());
        assert!(read(&[collector]).export.is_some());
        assert!(read(&[("OTEL_TRACES_EXPORTER", "otlp")]).export.is_some());
        assert!(read(&[collector, ("OTEL_TRACES_EXPORTER", "none")]).export.is_none());
        assert!(read(&[collector, ("OTEL_SDK_DISABLED", "true")]).export.is_none());
        let variables = [(collector.0.to_owned(), collector.1.to_owned())];
        assert_eq!(settings(false, &variables.into()), TracingSettings::default());
        let console = read(&[collector, ("OTEL_TRACES_EXPORTER", "console")]);
        assert!(console.export.is_none() && console.notes[0].contains("write otlp or none"), "{console:?}");
    }

    #[test]
    fn traces_endpoint_wins_and_must_be_a_url() {
        let of = |url| export(&[("OTEL_EXPORTER_OTLP_ENDPOINT", url)]).endpoint;
        let endpoint = |tls, host: &str, port| OtlpEndpoint { tls, host: host.to_owned(), port };
        assert_eq!(export(&[]).endpoint, endpoint(false, "localhost", 4317));
        assert_eq!(of("http://collector:14317"), endpoint(false, "collector", 14317));
        assert_eq!(of("https://collector.example/"), endpoint(true, "collector.example", 4317));
        assert_eq!(of("https://[::1]:4317"), endpoint(true, "::1", 4317));
        assert_eq!(of("collector:4317"), endpoint(true, "collector", 4317));
        let both = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:1"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "traces:2"),
            ("OTEL_EXPORTER_OTLP_INSECURE", "true"),
        ];
        assert_eq!(export(&both).endpoint, endpoint(false, "traces", 2));
        for bad in ["ftp://collector", "http://", "http://user:secret@collector", "http://a b"] {
            let settings = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", bad)]);
            assert!(settings.export.is_none() && settings.notes.len() == 1, "{bad}: {settings:?}");
            assert!(!settings.notes[0].contains("secret"), "{settings:?}");
        }
    }

    #[test]
    fn headers_are_decoded_and_never_shown() {
        let variables = [("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20s3cret, x-tenant=a=b")];
        let settings = export(&variables);
        let headers: Vec<_> = settings.headers.iter().map(|(key, value)| (&**key, &*value.0)).collect();
        assert_eq!(headers, [("authorization", "Bearer s3cret"), ("x-tenant", "a=b")]);
        assert!(!format!("{settings:?}").contains("s3cret"));
        let broken = read(&[
            ("OTEL_TRACES_EXPORTER", "otlp"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "s3cret,x=%zz,a b=s3cret,x=s3%0acret,fine=1"),
        ]);
        assert_eq!((broken.notes.len(), broken.export.unwrap().headers.len()), (4, 1));
        assert!(!broken.notes.concat().contains("s3"), "{:?}", broken.notes);
    }

    #[test]
    fn samplers_are_the_standard_ones() {
        let of = |name, argument| {
            let sampler =
                export(&[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)]).sampler;
            (sampler.ratio, sampler.parent_based)
        };
        assert_eq!(of("", ""), (0.1, true));
        assert_eq!(of("parentbased_traceidratio", "0.25"), (0.25, true));
        assert_eq!(of("traceidratio", "1"), (1.0, false));
        assert_eq!(of("always_on", "0.25"), (1.0, false));
        assert_eq!(of("always_off", ""), (0.0, false));
        assert_eq!(of("parentbased_always_on", ""), (1.0, true));
        assert_eq!(of("parentbased_always_off", ""), (0.0, true));
    }

    #[test]
    fn unusable_values_are_noted_and_keep_the_default() {
        let settings = read(&[
            ("OTEL_TRACES_EXPORTER", "otlp"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_TRACES_SAMPLER_ARG", "2"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "key.pem"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=1,b"),
        ]);
        assert_eq!(settings.notes.len(), 7, "{:#?}", settings.notes);
        let export = settings.export.unwrap();
        assert_eq!(export.sampler, SamplerSettings { ratio: 0.1, parent_based: true });
        assert_eq!((export.timeout.as_secs(), export.max_queue, export.client_cert), (10, 2048, None));
        assert_eq!(export.resource, [("service.name".to_owned(), "llm-d-epp".to_owned())]);
    }

    #[test]
    fn the_service_is_named_by_its_own_variable_first() {
        let named = [("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,deployment.environment.name=test%20one")];
        let of = |variables: &[(&str, &str)]| export(variables).resource;
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let environment = pair("deployment.environment.name", "test one");
        assert_eq!(of(&named), [pair("service.name", "a"), environment.clone()]);
        let both = [named[0], ("OTEL_SERVICE_NAME", "b")];
        assert_eq!(of(&both), [environment, pair("service.name", "b")]);
    }
}
