//! Parameters of data sources.

use std::path::PathBuf;
use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use crate::config::{ConfigError, Name, Node, Positioned, units};
use crate::scrape::metrics::{DCGM_SOURCE_TYPE, MODELS_SOURCE_TYPE, SOURCE_TYPE};
use crate::scrape::tls::TlsSettings;

/// What a source that is polled brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// Metrics of model servers: `metrics-data-source`.
    Metrics,
    /// Their lists of models: `models-data-source`.
    Models,
    /// Metrics of GPUs: `dcgm-data-source`.
    Dcgm,
}

impl SourceKind {
    /// Type of the plugin.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::Metrics => SOURCE_TYPE,
            Self::Models => MODELS_SOURCE_TYPE,
            Self::Dcgm => DCGM_SOURCE_TYPE,
        }
    }

    /// How often it is polled unless it says so; `None`: at every tick. Models come and go
    /// with people, and GPU exporters have new numbers once a second at most.
    pub fn default_interval(self) -> Option<Duration> {
        match self {
            Self::Metrics => None,
            Self::Models | Self::Dcgm => Some(Duration::from_secs(1)),
        }
    }
}

/// Parameters of a source that is polled, as they count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceParams {
    /// What it brings.
    pub kind: SourceKind,
    /// Over TLS.
    pub https: bool,
    /// Path of the page, with its slash. Default `/metrics`, for models `/v1/models`.
    pub path: String,
    /// Port to ask instead of the endpoint's own, for all endpoints. Default of DCGM 9400.
    pub port: Option<u16>,
    /// How often; `None`: as the kind has it.
    pub interval: Option<Duration>,
    /// How TLS is done, with https.
    pub tls: TlsSettings,
    /// The page is on the endpoint's node. Default no.
    pub on_node: bool,
    /// Ask for compressed pages. Default no.
    pub gzip: bool,
    /// Ask for the metrics in use only. Default no.
    pub select_metrics: bool,
}

impl SourceParams {
    /// The defaults.
    pub fn new(kind: SourceKind) -> Self {
        let tls = TlsSettings { insecure_skip_verify: true, ca_cert: None, client_cert: None };
        Self {
            kind,
            https: false,
            path: if kind == SourceKind::Models { "/v1/models" } else { "/metrics" }.to_owned(),
            port: (kind == SourceKind::Dcgm).then_some(9400),
            interval: None,
            tls,
            on_node: false,
            gzip: false,
            select_metrics: false,
        }
    }

    /// How often it is polled, whatever the tick is; `None`: at every tick.
    pub fn own_interval(&self) -> Option<Duration> {
        self.interval.or(self.kind.default_interval())
    }

    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, wrong types and values.
    pub fn decode(kind: SourceKind, node: &Node) -> Result<Self, ConfigError> {
        match kind {
            SourceKind::Metrics => node.decode::<WrittenMetrics>()?.into_written().read(kind),
            SourceKind::Models => node.decode::<WrittenModels>()?.into_written().read(kind),
            SourceKind::Dcgm => node.decode::<WrittenDcgm>()?.into_written().read(kind),
        }
    }
}

impl Serialize for SourceParams {
    /// What the plugin of this kind takes, as it counts.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("scheme", if self.https { "https" } else { "http" })?;
        map.serialize_entry("path", &self.path)?;
        map.serialize_entry("interval", &self.interval.map(|interval| format!("{interval:?}")))?;
        if self.kind != SourceKind::Models {
            map.serialize_entry("port", &self.port)?;
        }
        if self.https {
            let (cert, key) = self.tls.client_cert.as_ref().map(|(cert, key)| (cert, key)).unzip();
            map.serialize_entry("insecureSkipVerify", &self.tls.insecure_skip_verify)?;
            if self.kind != SourceKind::Dcgm {
                map.serialize_entry("caCertPath", &self.tls.ca_cert)?;
                map.serialize_entry("clientCertPath", &cert)?;
                map.serialize_entry("clientKeyPath", &key)?;
            }
        }
        match self.kind {
            SourceKind::Metrics => {
                map.serialize_entry("acceptGzip", &self.gzip)?;
                map.serialize_entry("selectMetrics", &self.select_metrics)?;
            }
            SourceKind::Models => {}
            SourceKind::Dcgm => map.serialize_entry("useNodeAddress", &self.on_node)?,
        }
        map.end()
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenMetrics {
    scheme: Option<Name>,
    path: Option<Name>,
    port: Option<Positioned<u16>>,
    insecure_skip_verify: Option<bool>,
    ca_cert_path: Option<Name>,
    client_cert_path: Option<Name>,
    client_key_path: Option<Name>,
    interval: Option<Name>,
    accept_gzip: Option<bool>,
    select_metrics: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenModels {
    scheme: Option<Name>,
    path: Option<Name>,
    insecure_skip_verify: Option<bool>,
    ca_cert_path: Option<Name>,
    client_cert_path: Option<Name>,
    client_key_path: Option<Name>,
    interval: Option<Name>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenDcgm {
    scheme: Option<Name>,
    path: Option<Name>,
    port: Option<Positioned<u16>>,
    insecure_skip_verify: Option<bool>,
    use_node_address: Option<bool>,
    interval: Option<Name>,
}

/// What any of them may say.
#[derive(Default)]
struct Written {
    scheme: Option<Name>,
    path: Option<Name>,
    port: Option<Positioned<u16>>,
    insecure_skip_verify: Option<bool>,
    ca_cert: Option<Name>,
    client_cert: Option<Name>,
    client_key: Option<Name>,
    interval: Option<Name>,
    gzip: Option<bool>,
    select_metrics: Option<bool>,
    on_node: Option<bool>,
}

impl WrittenMetrics {
    fn into_written(self) -> Written {
        Written {
            scheme: self.scheme,
            path: self.path,
            port: self.port,
            insecure_skip_verify: self.insecure_skip_verify,
            ca_cert: self.ca_cert_path,
            client_cert: self.client_cert_path,
            client_key: self.client_key_path,
            interval: self.interval,
            gzip: self.accept_gzip,
            select_metrics: self.select_metrics,
            on_node: None,
        }
    }
}

impl WrittenModels {
    fn into_written(self) -> Written {
        Written {
            scheme: self.scheme,
            path: self.path,
            insecure_skip_verify: self.insecure_skip_verify,
            ca_cert: self.ca_cert_path,
            client_cert: self.client_cert_path,
            client_key: self.client_key_path,
            interval: self.interval,
            ..Written::default()
        }
    }
}

impl WrittenDcgm {
    fn into_written(self) -> Written {
        Written {
            scheme: self.scheme,
            path: self.path,
            port: self.port,
            insecure_skip_verify: self.insecure_skip_verify,
            interval: self.interval,
            on_node: self.use_node_address,
            ..Written::default()
        }
    }
}

impl Written {
    fn read(self, kind: SourceKind) -> Result<SourceParams, ConfigError> {
        let mut params = SourceParams::new(kind);
        let given = |name: Option<Name>| name.filter(|name| !name.value.is_empty());
        params.tls.insecure_skip_verify = self.insecure_skip_verify.unwrap_or(true);
        params.tls.ca_cert = given(self.ca_cert).map(|path| PathBuf::from(path.value));
        params.tls.client_cert = match (given(self.client_cert), given(self.client_key)) {
            (Some(cert), Some(key)) => Some((cert.value.into(), key.value.into())),
            (None, None) => None,
            (Some(one), None) | (None, Some(one)) => {
                return Err(ConfigError::at(one.at, "clientCertPath and clientKeyPath go together")
                    .hint("set both or neither"));
            }
        };
        if let Some(scheme) = given(self.scheme) {
            params.https = match scheme.value.as_str() {
                "http" => false,
                "https" => true,
                other => {
                    let message = format!("scheme '{other}' is not known");
                    return Err(ConfigError::at(scheme.at, message).hint("write http or https"));
                }
            };
        }
        if let Some(path) = given(self.path) {
            if !path.value.starts_with('/') {
                let message = format!("path '{}' doesn't begin with a slash", path.value);
                let hint = format!("write for example {}", params.path);
                return Err(ConfigError::at(path.at, message).hint(hint));
            }
            params.path = path.value;
        }
        if let Some(port) = self.port {
            if port.value == 0 {
                return Err(ConfigError::at(port.at, "port 0 can't be asked").hint("1 to 65535"));
            }
            params.port = Some(port.value);
        }
        if let Some(interval) = given(self.interval) {
            let parsed = units::parse_duration(&interval.value);
            let parsed = parsed.map_err(|text| ConfigError::at(interval.at, format!("interval: {text}")))?;
            params.interval = Some(parsed).filter(|interval| !interval.is_zero());
        }
        params.gzip = self.gzip.unwrap_or_default();
        params.select_metrics = self.select_metrics.unwrap_or_default();
        params.on_node = self.on_node.unwrap_or_default();
        Ok(params)
    }
}

/// Parameters of `k8s-notification-source`: the objects that it would watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotificationParams {
    /// API group; empty for the core group.
    pub group: String,
    /// Version of the API.
    pub version: String,
    /// Kind of the objects.
    pub kind: String,
}

#[derive(Deserialize)]
struct WrittenNotification {
    #[serde(default)]
    group: String,
    version: Name,
    kind: Name,
}

impl NotificationParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, wrong types, and a missing version or kind.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let WrittenNotification { group, version, kind } = node.decode()?;
        for (field, name) in [("version", &version), ("kind", &kind)] {
            if name.value.is_empty() {
                let message = format!("'{field}' is empty");
                return Err(ConfigError::at(name.at, message).hint("write for example version v1, kind Pod"));
            }
        }
        Ok(Self { group, version: version.value, kind: kind.value })
    }
}
