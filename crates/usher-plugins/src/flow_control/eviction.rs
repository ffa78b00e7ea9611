//! Eviction of running requests for one that waits.

use usher_core::config::ConfigError;
use usher_plugin::{Build, BuildContext, Kind, PluginParts, PluginType, beta};

/// `sheddable-eviction-filter` in a configuration.
#[rustfmt::skip]
pub static SHEDDABLE: PluginType = beta("sheddable-eviction-filter", &[Kind::Eviction],
    "Lets running requests of priorities below 0 be evicted. Active with flowControl.enableEviction, declared or not.",
    Build::Reading(build)).alpha()
    .when("It need not be declared.");

/// `priority-then-time-eviction-order-policy` in a configuration.
#[rustfmt::skip]
pub static PRIORITY_THEN_TIME: PluginType = beta("priority-then-time-eviction-order-policy", &[Kind::Eviction],
    "Evicts the lowest priority first, and of it the newest request. Active with flowControl.enableEviction, declared or not.",
    Build::Reading(build)).alpha()
    .when("It need not be declared.");

/// The queue evicts as these say, and knows no other way.
fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    cx.takes_nothing()?;
    Ok(PluginParts::bare())
}
