//! Parameters of the plugins that read model servers' metrics.

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use crate::config::{ConfigError, Name, Node, Positioned, units};

mod extractor;

pub use extractor::{CoreMetricsExtractorParams, CustomMetric, EngineParams, MetricText};

/// Parameters of `metrics-data-source`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricsSourceParams {
    /// Path of the metrics page, with its slash. Default `/metrics`.
    pub path: String,
    /// Port to ask instead of the endpoint's own, for all endpoints.
    pub port: Option<u16>,
    /// How often; `None`: at every tick of `--refresh-metrics-interval`.
    #[serde(serialize_with = "as_text")]
    pub interval: Option<Duration>,
}

impl Default for MetricsSourceParams {
    fn default() -> Self {
        Self { path: "/metrics".to_owned(), port: None, interval: None }
    }
}

fn as_text<S: Serializer>(interval: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    interval.map(|interval| format!("{interval:?}")).serialize(serializer)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenSource {
    scheme: Option<Name>,
    path: Option<Name>,
    port: Option<Positioned<u16>>,
    /// Means something with https only.
    #[serde(rename = "insecureSkipVerify")]
    _insecure_skip_verify: Option<bool>,
    ca_cert_path: Option<Name>,
    client_cert_path: Option<Name>,
    client_key_path: Option<Name>,
    interval: Option<Name>,
}

impl MetricsSourceParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, wrong types and values, and what this version can't do: https.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let written: WrittenSource = node.decode()?;
        let mut params = Self::default();
        let given = |name: Option<Name>| name.filter(|name| !name.value.is_empty());
        let (cert, key) = (given(written.client_cert_path), given(written.client_key_path));
        if let (Some(one), None) | (None, Some(one)) = (&cert, &key) {
            return Err(ConfigError::at(one.at, "clientCertPath and clientKeyPath go together")
                .hint("set both or neither"));
        }
        for (field, value) in [("caCertPath", given(written.ca_cert_path)), ("clientCertPath", cert)] {
            if let Some(value) = value {
                return Err(unsupported(value.at, field));
            }
        }
        match given(written.scheme) {
            Some(scheme) if scheme.value == "https" => {
                return Err(unsupported(scheme.at, "scheme https"));
            }
            Some(scheme) if scheme.value != "http" => {
                let message = format!("scheme '{}' is not known", scheme.value);
                return Err(ConfigError::at(scheme.at, message).hint("write http"));
            }
            _ => {}
        }
        if let Some(path) = given(written.path) {
            if !path.value.starts_with('/') {
                return Err(ConfigError::at(
                    path.at,
                    format!("path '{}' doesn't begin with a slash", path.value),
                )
                .hint("write for example /metrics"));
            }
            params.path = path.value;
        }
        if let Some(port) = written.port {
            if port.value == 0 {
                return Err(ConfigError::at(port.at, "port 0 can't be asked").hint("1 to 65535"));
            }
            params.port = Some(port.value);
        }
        if let Some(interval) = given(written.interval) {
            let parsed = units::parse_duration(&interval.value);
            let parsed = parsed.map_err(|text| ConfigError::at(interval.at, format!("interval: {text}")))?;
            params.interval = Some(parsed).filter(|interval| !interval.is_zero());
        }
        Ok(params)
    }
}

fn unsupported(at: crate::config::Position, what: &str) -> ConfigError {
    ConfigError::at(at, format!("{what}: not supported by this version"))
}
