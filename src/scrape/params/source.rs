//! Parameters of data sources.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use crate::config::{ConfigError, Node, units};
use crate::scrape::metrics::{DCGM_SOURCE_TYPE, MODELS_SOURCE_TYPE, SOURCE_TYPE};
use crate::scrape::tls::TlsSettings;

/// Kind of data that a polled source brings.
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

    /// Interval of polls unless it says so; `None`: at every tick. Models come and go with
    /// people, and GPU exporters have new numbers once a second at most.
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
    /// Kind of data that it brings.
    pub kind: SourceKind,
    /// Over TLS.
    pub https: bool,
    /// Path of the page, with its slash. Default `/metrics`, for models `/v1/models`.
    pub path: String,
    /// Port to ask instead of the endpoint's own, for all endpoints. Default of DCGM 9400.
    pub port: Option<u16>,
    /// Interval; `None`: as the kind has it.
    pub interval: Option<Duration>,
    /// TLS settings, with https.
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
            path: if kind == SourceKind::Models { MODELS_PATH } else { METRICS_PATH }.to_owned(),
            port: (kind == SourceKind::Dcgm).then_some(DCGM_PORT),
            interval: None,
            tls,
            on_node: false,
            gzip: false,
            select_metrics: false,
        }
    }

    /// Interval of polls, whatever the tick is; `None`: at every tick.
    pub fn own_interval(&self) -> Option<Duration> {
        self.interval.or(self.kind.default_interval())
    }

    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` for unknown keys, wrong types and values out of range.
    pub fn decode(kind: SourceKind, node: &Node) -> Result<Self, ConfigError> {
        match kind {
            SourceKind::Metrics => Written::from(node.decode::<MetricsSourceParams>()?),
            SourceKind::Models => Written::from(node.decode::<ModelsSourceParams>()?),
            SourceKind::Dcgm => Written::from(node.decode::<DcgmSourceParams>()?),
        }
        .read(kind, node)
    }
}

impl Serialize for SourceParams {
    /// The parameters that the plugin of this kind takes, with their values in effect.
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

/// Parameters of `metrics-data-source`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricsSourceParams {
    /// http or https.
    scheme: String,
    /// Path of the metrics page.
    path: String,
    /// Port to ask, for all endpoints.
    #[schemars(extend("default" = "the endpoint's"))]
    port: Option<u16>,
    /// With https, take any certificate.
    insecure_skip_verify: bool,
    /// PEM file of who may sign certificates, which are for the endpoints' IP addresses.
    #[schemars(extend("default" = "the system's"))]
    ca_cert_path: String,
    /// PEM file of the certificate to show, with clientKeyPath.
    client_cert_path: String,
    /// PEM file of its key.
    client_key_path: String,
    /// Interval between two polls; at least 50ms.
    #[schemars(extend("x-unit" = "duration", "default" = "--refresh-metrics-interval"))]
    interval: String,
    /// Usher's own: ask for compressed pages, where the network costs more than a processor.
    accept_gzip: bool,
    /// Usher's own: ask for the metrics in use only, with path/?name[]=…, which vLLM answers without
    /// computing the others. A server whose response then lacks one is asked for whole pages.
    select_metrics: bool,
}

impl Default for MetricsSourceParams {
    fn default() -> Self {
        Self {
            scheme: HTTP.to_owned(),
            path: METRICS_PATH.to_owned(),
            port: None,
            insecure_skip_verify: true,
            ca_cert_path: String::new(),
            client_cert_path: String::new(),
            client_key_path: String::new(),
            interval: String::new(),
            accept_gzip: false,
            select_metrics: false,
        }
    }
}

/// Parameters of `models-data-source`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelsSourceParams {
    /// http or https.
    scheme: String,
    /// Path of the list.
    path: String,
    /// With https, take any certificate.
    insecure_skip_verify: bool,
    /// PEM file of who may sign certificates, which are for the endpoints' IP addresses.
    #[schemars(extend("default" = "the system's"))]
    ca_cert_path: String,
    /// PEM file of the certificate to show, with clientKeyPath.
    client_cert_path: String,
    /// PEM file of its key.
    client_key_path: String,
    /// Interval between two polls; at least 50ms.
    #[schemars(extend("x-unit" = "duration", "default" = "1s"))]
    interval: String,
}

impl Default for ModelsSourceParams {
    fn default() -> Self {
        Self {
            scheme: HTTP.to_owned(),
            path: MODELS_PATH.to_owned(),
            insecure_skip_verify: true,
            ca_cert_path: String::new(),
            client_cert_path: String::new(),
            client_key_path: String::new(),
            interval: String::new(),
        }
    }
}

/// Parameters of `dcgm-data-source`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DcgmSourceParams {
    /// http or https.
    scheme: String,
    /// Path of the metrics page.
    path: String,
    /// Port of the exporter.
    port: Option<u16>,
    /// With https, take any certificate.
    insecure_skip_verify: bool,
    /// The exporter runs on the endpoint's node, not in its pod. An endpoint whose node discovery
    /// doesn't know isn't asked.
    use_node_address: bool,
    /// Interval between two polls; at least 50ms.
    #[schemars(extend("x-unit" = "duration", "default" = "1s"))]
    interval: String,
}

impl Default for DcgmSourceParams {
    fn default() -> Self {
        Self {
            scheme: HTTP.to_owned(),
            path: METRICS_PATH.to_owned(),
            port: Some(DCGM_PORT),
            insecure_skip_verify: true,
            use_node_address: false,
            interval: String::new(),
        }
    }
}

const HTTP: &str = "http";
const METRICS_PATH: &str = "/metrics";
const MODELS_PATH: &str = "/v1/models";
const DCGM_PORT: u16 = 9400;

/// Parameters of all kinds together, as they are written.
#[derive(Default)]
struct Written {
    scheme: String,
    path: String,
    port: Option<u16>,
    insecure_skip_verify: bool,
    ca_cert: String,
    client_cert: String,
    client_key: String,
    interval: String,
    gzip: bool,
    select_metrics: bool,
    on_node: bool,
}

impl From<MetricsSourceParams> for Written {
    fn from(params: MetricsSourceParams) -> Self {
        Self {
            scheme: params.scheme,
            path: params.path,
            port: params.port,
            insecure_skip_verify: params.insecure_skip_verify,
            ca_cert: params.ca_cert_path,
            client_cert: params.client_cert_path,
            client_key: params.client_key_path,
            interval: params.interval,
            gzip: params.accept_gzip,
            select_metrics: params.select_metrics,
            on_node: false,
        }
    }
}

impl From<ModelsSourceParams> for Written {
    fn from(params: ModelsSourceParams) -> Self {
        Self {
            scheme: params.scheme,
            path: params.path,
            insecure_skip_verify: params.insecure_skip_verify,
            ca_cert: params.ca_cert_path,
            client_cert: params.client_cert_path,
            client_key: params.client_key_path,
            interval: params.interval,
            ..Self::default()
        }
    }
}

impl From<DcgmSourceParams> for Written {
    fn from(params: DcgmSourceParams) -> Self {
        Self {
            scheme: params.scheme,
            path: params.path,
            port: params.port,
            insecure_skip_verify: params.insecure_skip_verify,
            interval: params.interval,
            on_node: params.use_node_address,
            ..Self::default()
        }
    }
}

impl Written {
    fn read(self, kind: SourceKind, node: &Node) -> Result<SourceParams, ConfigError> {
        let mut params = SourceParams::new(kind);
        let given = |path: String| Some(path).filter(|path| !path.is_empty()).map(PathBuf::from);
        params.tls.insecure_skip_verify = self.insecure_skip_verify;
        params.tls.ca_cert = given(self.ca_cert);
        params.tls.client_cert = match (given(self.client_cert), given(self.client_key)) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (cert, _) => {
                let key = if cert.is_some() { "clientCertPath" } else { "clientKeyPath" };
                let message = "clientCertPath and clientKeyPath go together";
                return Err(ConfigError::at(node.position_of(key), message).hint("set both or neither"));
            }
        };
        params.https = match self.scheme.as_str() {
            "" | HTTP => false,
            "https" => true,
            other => {
                let message = format!("scheme '{other}' is not known");
                return Err(ConfigError::at(node.position_of("scheme"), message).hint("write http or https"));
            }
        };
        if !self.path.is_empty() {
            if !self.path.starts_with('/') {
                let message = format!("path '{}' doesn't begin with a slash", self.path);
                let hint = format!("write for example {}", params.path);
                return Err(ConfigError::at(node.position_of("path"), message).hint(hint));
            }
            params.path = self.path;
        }
        if self.port == Some(0) {
            return Err(ConfigError::at(node.position_of("port"), "port 0 can't be asked").hint("1 to 65535"));
        }
        params.port = self.port;
        if !self.interval.is_empty() {
            let parsed = units::parse_duration(&self.interval);
            let at = node.position_of("interval");
            let parsed = parsed.map_err(|text| ConfigError::at(at, format!("interval: {text}")))?;
            params.interval = Some(parsed).filter(|interval| !interval.is_zero());
        }
        params.gzip = self.gzip;
        params.select_metrics = self.select_metrics;
        params.on_node = self.on_node;
        Ok(params)
    }
}

/// Parameters of `k8s-notification-source`: the objects that it would watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotificationParams {
    /// API group of the objects; none is the core group.
    #[serde(default)]
    pub group: String,
    /// Version of their API.
    pub version: String,
    /// Their kind.
    pub kind: String,
}

impl NotificationParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` for unknown keys, wrong types, and a missing version or kind.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        for (key, value) in [("version", &params.version), ("kind", &params.kind)] {
            if value.is_empty() {
                return Err(ConfigError::at(node.position_of(key), format!("'{key}' is empty"))
                    .hint("write for example version v1, kind Pod"));
            }
        }
        Ok(params)
    }
}
