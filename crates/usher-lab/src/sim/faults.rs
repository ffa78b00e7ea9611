//! Ways in which a server can misbehave, asked for by a request's header or set on
//! the server.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use usher_core::config::units::parse_duration;

/// Misbehaviour of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricsFault {
    /// The page as it was when first asked for under this fault.
    Stale,
    /// Half a page, cut in a line, then lines that are not in the format.
    Broken,
    /// An empty page.
    Empty,
    /// Status 500.
    Error,
    /// No response.
    Hang,
}

/// Misbehaviour of KV events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KvEventsFault {
    /// Every other message is lost on its way.
    Drop,
    /// Every message comes twice.
    Duplicate,
    /// Messages come in pairs, the later one first.
    Reorder,
    /// No message is sent and no replay is answered.
    Silence,
    /// At once and once: connections end, the KV cache is empty but for running requests, whose blocks match no prefix,
    /// messages are numbered from 0 again, and `process_start_time_seconds` is now.
    Restart,
}

/// Faults of a server, or of one request. The default is none.
///
/// The header `x-sim-fault` takes a list such as `slow=200ms, status=503` and holds for
/// its own request, on any path, in place of what is set on the server.
/// `POST /admin/fault` takes the same names in a JSON object, such as
/// `{"status": 503, "count": 2}`, and holds for the requests for tokens from then on;
/// `{}` or `DELETE` ends it.
///
/// | name | effect |
/// |---|---|
/// | `status=503` | that status, with vLLM's error body |
/// | `slow=200ms` | waits so long, in simulated time, before doing anything else |
/// | `hang` | never responds |
/// | `reset` | HTTP/1.1: TCP reset of the connection; HTTP/2: reset of the stream |
/// | `drop-after=5` | ends the connection (HTTP/2: the stream) after 5 tokens, in the middle of the body |
/// | `metrics=stale` | only on the server: `/metrics` is `stale`, `broken`, `empty`, an `error` or a `hang` |
/// | `health=503` | only on the server: status of `/health` |
/// | `kv-events=drop` | only on the server: KV events [`drop`, `duplicate`, `reorder`, `silence` or `restart`](KvEventsFault) |
/// | `sleep=1` | only on the server: asleep at level 1 or 2, as `vllm:engine_sleep_state` says; the KV cache is empty, no event says so, and requests for tokens get status 503 |
/// | `count=2` | only on the server: `status` to `drop-after` hold for so many requests |
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Fault {
    /// Respond with this status, 200 to 599.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "status")]
    pub status: Option<u16>,
    /// Wait so long first. In JSON a string such as `"200ms"`.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "millis",
        deserialize_with = "duration"
    )]
    pub slow: Option<Duration>,
    /// Never respond.
    pub hang: bool,
    /// Break the connection before a response.
    pub reset: bool,
    /// Break the connection after so many tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_after: Option<u32>,
    /// Fault of `/metrics`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsFault>,
    /// Status of `/health`, 200 to 599.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "status")]
    pub health: Option<u16>,
    /// Fault of KV events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_events: Option<KvEventsFault>,
    /// Level of sleep, 1 or 2. Both give up the KV cache.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "level")]
    pub sleep: Option<u8>,
    /// For how many requests the faults of requests hold. `None`: until changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

fn millis<S: Serializer>(slow: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match slow {
        Some(slow) => serializer.collect_str(&format_args!("{}ms", slow.as_secs_f64() * 1e3)),
        None => serializer.serialize_none(),
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    text.map(|text| parse_duration(&text)).transpose().map_err(serde::de::Error::custom)
}

fn status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    let status: Option<u16> = Option::deserialize(deserializer)?;
    status.map(checked_status).transpose().map_err(serde::de::Error::custom)
}

fn level<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    let level: Option<u8> = Option::deserialize(deserializer)?;
    match level {
        None | Some(1 | 2) => Ok(level),
        Some(level) => Err(serde::de::Error::custom(format!("{level} is not a level of sleep, 1 or 2"))),
    }
}

fn checked_status(status: u16) -> Result<u16, String> {
    match status {
        200..=599 => Ok(status),
        _ => Err(format!("{status} is not a status from 200 to 599")),
    }
}

impl Fault {
    /// Parses the value of the header `x-sim-fault`.
    ///
    /// # Errors
    /// A sentence that quotes the part that is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut fault = Self::default();
        for part in text.split([',', ';']).map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let number = || value.parse::<u32>().map_err(|_| format!("{part:?}: a number must follow the ="));
            match name {
                "status" => {
                    let status = u16::try_from(number()?).map_err(|_| format!("{part:?} is not a status"))?;
                    fault.status = Some(checked_status(status)?);
                }
                "slow" => fault.slow = Some(parse_duration(value)?),
                "hang" if value.is_empty() => fault.hang = true,
                "reset" if value.is_empty() => fault.reset = true,
                "drop-after" => fault.drop_after = Some(number()?),
                _ => {
                    return Err(format!(
                        "{part:?} is not a fault of a request; write status=503, slow=200ms, hang, reset or drop-after=5"
                    ));
                }
            }
        }
        Ok(fault)
    }

    // The part for one request, counted down.
    fn take_for_request(&mut self) -> Self {
        if self.sleep.is_some() {
            return Self { status: Some(503), ..Self::default() };
        }
        match &mut self.count {
            Some(0) => return Self::default(),
            Some(left) => *left -= 1,
            None => {}
        }
        Self { metrics: None, health: None, kv_events: None, sleep: None, count: None, ..self.clone() }
    }
}

/// The fault set on a server.
#[derive(Debug, Default)]
pub(crate) struct ServerFault(std::sync::Mutex<Fault>);

impl ServerFault {
    pub(crate) fn set(&self, fault: Fault) {
        *self.lock() = fault;
    }

    pub(crate) fn get(&self) -> Fault {
        self.lock().clone()
    }

    /// Faults of the next request for tokens, which counts as one of `count`.
    pub(crate) fn for_request(&self) -> Fault {
        self.lock().take_for_request()
    }

    // Nothing panics while it holds this lock, and a fault is good at any moment.
    fn lock(&self) -> std::sync::MutexGuard<'_, Fault> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_json_give_equal_faults() {
        let header = Fault::parse("slow=200ms, status=503; drop-after=5,reset").unwrap();
        let json = r#"{"slow":"200ms","status":503,"drop-after":5,"reset":true}"#;
        assert_eq!(serde_json::from_str::<Fault>(json).unwrap(), header);
        let text = serde_json::to_string(&header).unwrap();
        assert_eq!(serde_json::from_str::<Fault>(&text).unwrap(), header);
    }

    #[test]
    fn unknown_faults_are_refused() {
        for text in ["explode", "status", "status=99", "slow=5", "hang=1", "metrics=stale", "drop-after=x"] {
            assert!(Fault::parse(text).is_err(), "{text}");
        }
        for json in
            [r#"{"stats":503}"#, r#"{"status":1}"#, r#"{"slow":5}"#, r#"{"metrics":"odd"}"#, r#"{"sleep":3}"#]
        {
            assert!(serde_json::from_str::<Fault>(json).is_err(), "{json}");
        }
        assert_eq!(Fault::parse("").unwrap(), Fault::default());
    }

    #[test]
    fn a_counted_fault_ends_but_leaves_the_metrics_broken() {
        let server = ServerFault::default();
        let metrics = Some(MetricsFault::Stale);
        server.set(Fault { status: Some(500), count: Some(2), metrics, ..Fault::default() });
        let statuses: Vec<_> = (0..3).map(|_| server.for_request().status).collect();
        assert_eq!(statuses, [Some(500), Some(500), None]);
        assert_eq!(server.get().metrics, metrics);
    }

    #[test]
    fn a_sleeping_server_answers_no_request() {
        let server = ServerFault::default();
        server.set(serde_json::from_str(r#"{"sleep":2}"#).unwrap());
        assert_eq!(server.for_request(), Fault { status: Some(503), ..Fault::default() });
    }
}
