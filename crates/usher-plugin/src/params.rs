//! Reading of parameters, and names that several plugins have as defaults.

use usher_core::config::{ConfigError, Name, Positioned};

/// The producer of what is cached where a configuration names no other.
pub const PREFIX_PRODUCER: &str = "approx-prefix-cache-producer";
/// The producer of what is in flight where a configuration names no other.
pub const INFLIGHT_PRODUCER: &str = "inflight-load-producer";
/// The producer of predicted latencies where a configuration names no other.
pub const LATENCY_PRODUCER: &str = "predicted-latency-producer";

/// The name that is written, or the default; an empty one means the default.
pub fn named(written: Option<String>, default: &str) -> String {
    written.filter(|name| !name.is_empty()).unwrap_or_else(|| default.to_owned())
}

/// A number within its range, or the default.
///
/// # Errors
/// A number that is not allowed, with its place.
pub fn checked(
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
///
/// # Errors
/// A name that can't be a header's, with its position.
pub fn header_name(written: &Name) -> Result<String, ConfigError> {
    let name = http::HeaderName::from_bytes(written.value.as_bytes()).map_err(|_| {
        ConfigError::at(written.at, format!("'{}' can't be the name of a header", written.value))
            .hint("write for example x-session-id")
    })?;
    Ok(name.as_str().to_owned())
}
