//! Durations in parameters.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};
use usher_core::config::units::parse_duration;

/// Time for a prompt's tokens where none is configured: a hit saves more, a miss costs no more.
pub(super) const DEADLINE: Duration = Duration::from_millis(50);

pub(super) fn shown<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{duration:?}"))
}

pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map_err(serde::de::Error::custom)
}
