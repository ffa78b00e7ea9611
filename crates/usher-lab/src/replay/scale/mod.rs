//! A capacity policy at work in virtual time: pods come and go as it says under the requests of a
//! trace, beside an HPA of the same metrics and beside pods that stay.
//!
//! `fleet` has the pods and what they cost, `sizer` and `hpa` say how many there should be, and the
//! replay's world starts and ends them.

mod fleet;
mod hpa;
mod seen;
mod sizer;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::configured::{Build, BuildError, Reading};
use super::error::{LONGEST, ReplayError};
use super::policy::{Picker, Policy as Picking};
use super::requests::Requests;
use super::servers::Server;
use super::summary::{Goodput, Latency, Measure};
use super::workload::Arrival;
use super::world::{RequestOutcomes, Scaling, World};
use crate::sim::{Dialect, EngineConfig};
use usher_capacity::Policy;
use usher_capacity::policy::{Sizing, Total};
use usher_core::config::EndpointPickerConfig;

pub(super) use fleet::Fleet;
pub(super) use seen::{Number, Seen};
pub(super) use sizer::Sizer;

use hpa::{Hpa, STABILIZATION};

/// Settings of a comparison of sizes.
#[derive(Clone, Debug)]
pub struct ScaleSettings {
    /// The policy: with one role and `total`.
    pub policy: Policy,
    /// The requests, in order of arrival.
    pub arrivals: Vec<Arrival>,
    /// Name that the user gave, and configuration that decides where requests go; `None`: the built-in one.
    pub config: (String, Option<Box<EndpointPickerConfig>>),
    /// Engine configuration of a pod.
    pub engine: EngineConfig,
    /// Time that a pod starts.
    pub start: Duration,
    /// Pods that there are at first.
    pub initial: u32,
    /// Until then a first token is in time.
    pub ttft_limit: Duration,
    /// Time between two scrapes of a server, where the configuration says nothing else.
    pub scrape_interval: Duration,
    /// Age from which metrics count as missing.
    pub metrics_staleness: Duration,
    /// Seed of everything random.
    pub seed: u64,
}

/// Result of a comparison of sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScaleComparison {
    /// Number of requests.
    pub requests: u64,
    /// Seconds from the first to the last arrival, in which pods are paid for.
    pub seconds: f64,
    /// Time that a pod starts, in seconds.
    pub start_s: f64,
    /// Until then a first token is in time, in seconds.
    pub ttft_limit_s: f64,
    /// The policy, the HPA, then the fixed sizes.
    pub ways: Vec<ScaleSummary>,
    /// Notes on the result that the user should know, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The numbers of one way to find a size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScaleSummary {
    /// Name in the report: `policy NAME`, `HPA`, or `N pods`.
    pub name: String,
    /// Requests that were refused.
    pub refused: u64,
    /// Time to first token of those that were answered; `None` when none was.
    pub ttft: Option<Latency>,
    /// Requests whose first token came within the limit.
    pub in_time: Goodput,
    /// Seconds of all pods together, from when each was asked for until it was gone.
    pub pod_seconds: f64,
    /// The largest size that was asked for.
    pub largest: u32,
    /// Number of changes of the size.
    pub changes: u32,
    /// Number of changes in the opposite direction of the one before.
    pub reversals: u32,
}

/// Runs the policy, an HPA with its metrics and bounds, and pods that stay: as many as the policy had on
/// average, rounded up, and as many as it had at most. `progress` is called with how much is done, 0 to 1.
///
/// # Errors
/// `ReplayError` if the policy has several roles or sizes by metrics that simulated servers lack, a
/// configuration or a server is not valid, or there is no request.
pub fn compare_sizes(
    settings: &ScaleSettings,
    build: &Build<'_>,
    mut progress: impl FnMut(f64),
) -> Result<ScaleComparison, ReplayError> {
    let ScaleSettings { policy, arrivals, initial, .. } = settings;
    let [role] = &policy.roles[..] else { return Err(ReplayError::Sizing(ONE_ROLE.to_owned())) };
    let (total, numbers) = sized_by(policy).map_err(ReplayError::Sizing)?;
    let span = arrivals.last().ok_or(ReplayError::Nothing("request"))?.at;
    if span > LONGEST {
        return Err(ReplayError::TooLong(span));
    }
    let hpa = Sizer::Hpa(Hpa::new(role.range, total.metrics.clone()));
    let first = [(Sizer::of(policy), *initial), (hpa, *initial)];
    let mut ways = Vec::new();
    let mut outcomes =
        run(settings, build, &numbers, span, first, |share| progress(share / 2.0))?.into_iter();
    let summary = |name: String, outcomes: Option<RequestOutcomes>| {
        outcomes.and_then(|outcomes| ScaleSummary::of(name, &outcomes, settings.ttft_limit))
    };
    ways.extend(summary(format!("policy {}", policy.name), outcomes.next()));
    ways.extend(summary("HPA".to_owned(), outcomes.next()));
    let own = ways.first();
    let mean = own.map_or(0.0, |own| own.pod_seconds / span.as_secs_f64().max(f64::MIN_POSITIVE));
    let mean = (mean.ceil() as u32).max(1);
    let mut sizes = vec![mean, own.map_or(1, |own| own.largest).max(1)];
    sizes.dedup();
    let fixed = sizes.iter().map(|size| (Sizer::Fixed, *size));
    let outcomes = run(settings, build, &numbers, span, fixed, |share| progress(0.5 + share / 2.0))?;
    for (size, outcomes) in sizes.iter().zip(outcomes) {
        ways.extend(summary(format!("{size} pods"), Some(outcomes)));
    }
    Ok(ScaleComparison {
        requests: arrivals.len() as u64,
        seconds: span.as_secs_f64(),
        start_s: settings.start.as_secs_f64(),
        ttft_limit_s: settings.ttft_limit.as_secs_f64(),
        notes: equal(&ways, policy, span).into_iter().collect(),
        ways,
    })
}

/// A note where the policy and the HPA came to the same.
fn equal(ways: &[ScaleSummary], policy: &Policy, span: Duration) -> Option<String> {
    let [own, hpa, ..] = ways else { return None };
    if *own != (ScaleSummary { name: own.name.clone(), ..hpa.clone() }) {
        return None;
    }
    let rest = policy.behavior.down.stabilization;
    let why = if span < rest.min(STABILIZATION) {
        format!(
            "they grow alike, and the {:.0} s of the requests end before either shrinks, which takes {:.0} s of less \
             load for the policy and {:.0} s for the HPA; a longer trace may tell them apart",
            span.as_secs_f64(),
            rest.as_secs_f64(),
            STABILIZATION.as_secs_f64()
        )
    } else {
        "the limits of the policy let it do what an HPA does under this load".to_owned()
    };
    Some(format!("{} and {} never differed: {why}", own.name, hpa.name))
}

const ONE_ROLE: &str =
    "a policy with one role can be compared, and this one has several: try it with usher capacity simulate";

/// The sizing of a policy that can be compared, and the numbers that it looks at.
fn sized_by(policy: &Policy) -> Result<(&Total, Vec<Number>), String> {
    let Sizing::Total(total) = &policy.sizing else {
        return Err(
            "a policy with `total` can be compared, and this one has none: try it with usher capacity simulate"
                .to_owned(),
        );
    };
    let number = |name: &String| {
        let known = Number::ALL.iter().find(|(known, _)| known == name).map(|(_, number)| *number);
        known.ok_or_else(|| {
            let known: Vec<&str> = Number::ALL.iter().map(|(name, _)| *name).collect();
            format!("simulated servers have no '{name}'; known are {}", known.join(", "))
        })
    };
    let numbers = policy.signals.iter().map(number).collect::<Result<_, _>>()?;
    Ok((total, numbers))
}

/// Runs all of these over the same requests, each with as many pods at first.
fn run(
    settings: &ScaleSettings,
    build: &Build<'_>,
    numbers: &[Number],
    span: Duration,
    ways: impl IntoIterator<Item = (Sizer, u32)>,
    mut progress: impl FnMut(f64),
) -> Result<Vec<RequestOutcomes>, ReplayError> {
    let ScaleSettings { arrivals, config: (name, config), engine, seed, .. } = settings;
    let (interval, max_age) = (settings.scrape_interval, settings.metrics_staleness);
    let reading = Reading { interval, max_age, dialect: Dialect::default() };
    let picking = Picking::Configured(config.clone());
    let requests = Arc::new(Requests::new(arrivals, &[Server::new("pod", engine.clone())], true));
    let mut worlds = Vec::new();
    for (sizer, size) in ways {
        let fleet = Fleet::new(size, settings.start, span);
        let scaling = Scaling::new(fleet, sizer, numbers.to_vec(), engine.clone());
        let servers: Vec<Server> = scaling.servers().into_iter().map(|(_, server)| server).collect();
        let (picker, _) =
            Picker::new(&picking, &servers, reading, *seed, build).map_err(|error| match error {
                BuildError::Config(error) => {
                    ReplayError::Config { policy: name.clone(), error: Box::new(error) }
                }
                BuildError::Metrics(error) => ReplayError::Metrics(error.to_string()),
            })?;
        worlds.push(World::scaled(picker, scaling, Arc::clone(&requests))?);
    }
    let (mut count, all) = (0.0, (arrivals.len() * worlds.len()) as f64);
    let mut outcomes = Vec::with_capacity(worlds.len());
    for world in worlds {
        outcomes.push(world.run(|| {
            count += 1.0;
            progress(count / all);
        }));
    }
    Ok(outcomes)
}

impl ScaleSummary {
    fn of(name: String, outcomes: &RequestOutcomes, ttft_limit: Duration) -> Option<Self> {
        let fleet = outcomes.fleet.as_ref()?;
        let (ttft, in_time) = outcomes.in_time(Measure { ttft_limit, tpot_limit: Duration::MAX });
        Some(Self {
            name,
            refused: outcomes.requests.iter().filter(|outcome| outcome.refused).count() as u64,
            ttft,
            in_time,
            pod_seconds: fleet.pod_seconds(),
            largest: fleet.largest(),
            changes: fleet.changes(),
            reversals: fleet.reversals(),
        })
    }
}
