//! Parameters that several plugins share, and those of plugins without a file
//! of their own.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, Name, Node, Positioned};

/// The producer of what is cached where a configuration names no other.
pub(super) const PREFIX_PRODUCER: &str = "approx-prefix-cache-producer";
/// The producer of what is in flight where a configuration names no other.
pub(super) const INFLIGHT_PRODUCER: &str = "inflight-load-producer";
/// The producer of predicted latencies where a configuration names no other.
pub(super) const LATENCY_PRODUCER: &str = "predicted-latency-producer";

/// The name that is written, or the default; an empty one means the default.
pub(super) fn named(written: Option<String>, default: &str) -> String {
    written.filter(|name| !name.is_empty()).unwrap_or_else(|| default.to_owned())
}

/// Parameters of every picker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PickerParams {
    /// How many endpoints are picked at most.
    pub(super) max_num_of_endpoints: NonZeroUsize,
}

impl PickerParams {
    pub(super) fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            max_num_of_endpoints: i64,
        }
        let written: Written = node.decode()?;
        // As with the peer, anything below 1 means 1.
        let count = usize::try_from(written.max_num_of_endpoints).ok().and_then(NonZeroUsize::new);
        Ok(Self { max_num_of_endpoints: count.unwrap_or(NonZeroUsize::MIN) })
    }
}

/// A number within its range, or the default.
pub(super) fn checked(
    name: &str,
    written: Option<Positioned<f64>>,
    default: f64,
    allowed: impl Fn(f64) -> bool,
) -> Result<f64, ConfigError> {
    match written {
        None => Ok(default),
        Some(Positioned { value, .. }) if value.is_finite() && allowed(value) => Ok(value),
        Some(Positioned { at, value }) => {
            Err(ConfigError::at(at, format!("{name} can't be {value}"))
                .hint(format!("the default is {default}")))
        }
    }
}

/// The name of a header in lower case, as headers are looked up.
pub(super) fn header_name(written: &Name) -> Result<String, ConfigError> {
    let name = http::HeaderName::from_bytes(written.value.as_bytes()).map_err(|_| {
        ConfigError::at(written.at, format!("'{}' can't be the name of a header", written.value))
            .hint("write for example x-session-id")
    })?;
    Ok(name.as_str().to_owned())
}
