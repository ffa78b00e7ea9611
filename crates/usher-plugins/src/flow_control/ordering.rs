//! Ordering policies: the order of the requests of a flow.

use usher_core::config::ConfigError;
use usher_plugin::{Build, BuildContext, Kind, PluginParts, PluginType, beta};

/// `fcfs-ordering-policy` in a configuration.
#[rustfmt::skip]
pub static FCFS: PluginType = beta("fcfs-ordering-policy", &[Kind::OrderingPolicy],
    "First come, first served.",
    Build::Ignoring(fcfs))
    .when("Part of the default: all requests of a flow are alike.");

/// `edf-ordering-policy` in a configuration.
#[rustfmt::skip]
pub static EDF: PluginType = beta("edf-ordering-policy", &[Kind::OrderingPolicy],
    "Earliest deadline first, by the limit on waiting; requests without one go last.",
    Build::Ignoring(edf))
    .when("Requests may wait for different times. With one for all it is the order of arrival.");

/// `slo-deadline-ordering-policy` in a configuration.
#[rustfmt::skip]
pub static SLO_DEADLINE: PluginType = beta("slo-deadline-ordering-policy", &[Kind::OrderingPolicy],
    "Earliest TTFT deadline first, by the header x-llm-d-slo-ttft-ms (or x-slo-ttft-ms); requests without it go last.",
    Build::Ignoring(slo_deadline))
    .when("Clients say how soon they need a response.");

fn fcfs(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts::bare().with_extra(Ordering::Fcfs))
}

fn edf(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts::bare().with_extra(Ordering::Edf))
}

fn slo_deadline(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts::bare().with_extra(Ordering::SloDeadline))
}

/// The order of a flow's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ordering {
    /// `fcfs-ordering-policy`: who came first.
    #[default]
    Fcfs,
    /// `edf-ordering-policy`: whose time to wait ends first. Those that may wait for ever
    /// go last.
    Edf,
    /// `slo-deadline-ordering-policy`: whose first token is due first. Those that name no
    /// time go last.
    SloDeadline,
}
