//! Policies with resolved metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::signal::{Join, NAMED, Signal};
use crate::capacity::policy::{Mode, Sizing, WAITING, file};
use crate::capacity::{Condition, Policy, rules::RuleMetric};
use crate::config::ConfigError;
use crate::endpoints::{AttributeId, Lease};
use crate::scrape::{AttributeReading, AttributeSpec, Join as Series, parse_selector};

/// Message if several replicas could write at once.
pub const UNELECTED: &str = "nothing is written, as several replicas could write at once; give --ha-enable-leader-election, or --capacity-single-replica where there is never more than one (replicas: 1, strategy: Recreate)";

/// Longest and shortest interval of scrapes for policies.
const SLOWEST: Duration = Duration::from_secs(5);
const FASTEST: Duration = Duration::from_secs(1);

/// A policy with its resolved metrics.
#[derive(Clone, Debug)]
pub struct Group {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Metrics, in the order of the policy's signals.
    pub signals: Vec<Signal>,
    /// Condition that forbids writes, if any.
    pub frozen: Option<Condition>,
}

/// Policies, and the metrics to scrape for them.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// By position in the file, or by age.
    pub groups: Vec<Group>,
    /// Policies without a usable version, as far as readable: gates of their replacement pods still open.
    pub unusable: Vec<Arc<Policy>>,
    /// Metrics of model servers.
    pub servers: Vec<AttributeSpec>,
    /// Metrics of GPU exporters.
    pub gpus: Vec<AttributeSpec>,
    /// Warnings about suspicious values, a sentence each.
    pub warnings: Vec<String>,
}

type Leasing = Box<dyn Fn(&str) -> Option<Lease<AttributeId>> + Send + Sync>;

/// Sources of metrics.
pub struct Sources {
    /// Leases a slot for a metric in every endpoint's load; `None`: none is left.
    pub lease: Leasing,
    /// Metrics that extractors of the configuration read, with their names.
    pub configured: Vec<(AttributeId, String)>,
    /// `true` if a data source scrapes model servers.
    pub has_servers: bool,
    /// `true` if one scrapes GPU exporters.
    pub has_gpus: bool,
    /// `true` if requests can wait.
    pub has_queue: bool,
    /// `true` if plans can be applied, with an API server.
    pub can_act: bool,
    /// `true` with a Prometheus server.
    pub has_queries: bool,
    /// `true` if this replica is the only one, or a leader is elected.
    pub is_only: bool,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").field("configured", &self.configured).finish_non_exhaustive()
    }
}

impl Groups {
    /// Reads the policies of a text, and resolves their metrics.
    ///
    /// # Errors
    /// All errors: of the text, and unknown metrics.
    pub fn read(text: &str, sources: &Sources) -> Result<Self, Vec<ConfigError>> {
        let (mut all, mut errors) = (Self::default(), Vec::new());
        for read in file::parse(text)? {
            all.warnings.extend(read.warnings.iter().map(ToString::to_string));
            if let Some(topology) = &read.cluster_topology {
                all.warnings.push(format!("policy '{}' names the ClusterTopology '{topology}', which is read only for policies of the cluster (--capacity-policies): the built-in layers are used", read.policy.name));
            }
            if let Err(unknown) = all.add(read.policy, sources) {
                errors.extend(unknown);
            }
        }
        if errors.is_empty() { Ok(all) } else { Err(errors) }
    }

    /// Adds a policy, unless it has unknown metrics.
    ///
    /// # Errors
    /// A `ConfigError` per unknown metric.
    pub(super) fn add(&mut self, policy: Policy, sources: &Sources) -> Result<(), Vec<ConfigError>> {
        let (servers, gpus) = (self.servers.len(), self.gpus.len());
        let (mut signals, mut errors) = (Vec::with_capacity(policy.signals.len()), Vec::new());
        for name in &policy.signals {
            match self.signal(name, sources) {
                Ok(signal) => signals.push(signal),
                Err(error) => errors.push(of_policy(&policy.name, &error)),
            }
        }
        if !errors.is_empty() {
            // Unused metrics are not scraped.
            self.servers.truncate(servers);
            self.gpus.truncate(gpus);
            return Err(errors);
        }
        self.warn(&policy, sources);
        let frozen = match policy.mode {
            Mode::Apply if !sources.is_only => Some(Condition::NoLeaderElection),
            _ if policy.is_paused => Some(Condition::Suspended),
            _ => None,
        };
        self.groups.push(Group { policy: Arc::new(policy), signals, frozen });
        Ok(())
    }

    /// Interval of scrapes for policies.
    pub fn interval(&self) -> Duration {
        let shortest = self.groups.iter().map(|group| group.policy.interval).min();
        shortest.map_or(SLOWEST, |shortest| (shortest / 3).clamp(FASTEST, SLOWEST))
    }

    /// Prometheus queries of policies, with the shortest interval of each.
    pub fn queries(&self) -> BTreeMap<Arc<str>, Duration> {
        let mut all = BTreeMap::new();
        for policy in self.groups.iter().map(|group| &group.policy) {
            for query in policy.queries() {
                let shortest = all.entry(Arc::from(query)).or_insert(policy.interval);
                *shortest = policy.interval.min(*shortest);
            }
        }
        all
    }

    fn signal(&mut self, name: &str, sources: &Sources) -> Result<Signal, ConfigError> {
        if let Some(signal) = Signal::named(name) {
            return Ok(signal);
        }
        if let Some((id, _)) = sources.configured.iter().find(|(_, known)| known == name) {
            return Ok(Signal::Configured(*id, Join::of(name)));
        }
        if name == WAITING {
            let text = "waiting requests are not a metric of pods: they count in queue_depth, and rules can use them";
            return Err(ConfigError::new(text));
        }
        let known =
            || NAMED.iter().map(|(name, _)| *name).chain(sources.configured.iter().map(|(_, n)| n.as_str()));
        let unknown = |why: &str| {
            let known: Vec<&str> = known().collect();
            ConfigError::new(format!("unknown metric '{name}': {why}"))
                .hint(format!("known are {}; a query has source: prometheus", known.join(", ")))
        };
        // A metric of a page has any name; what is nearly that of a known number is a slip.
        let slip = ConfigError::new(format!("unknown metric '{name}'")).did_you_mean(name, known());
        if slip.hint_text().is_some() {
            return Err(slip);
        }
        let metric = parse_selector(name).map_err(|why| unknown(&why))?;
        let of_gpus = metric.name.starts_with("DCGM_");
        if of_gpus && !sources.has_gpus {
            return Err(unknown("the configuration has no dcgm-data-source that could read it"));
        }
        if !of_gpus && !sources.has_servers {
            return Err(unknown("the configuration has no metrics-data-source that could read it"));
        }
        let Some(id) = (sources.lease)(name) else {
            let most = AttributeId::MAX;
            return Err(ConfigError::new(format!("too many metrics: no slot for '{name}'")).hint(format!(
                "extractors and policies can name {most} metrics in all; those of an earlier version of the file count for another half a minute"
            )));
        };
        let join = Join::of(name);
        let series = if join == Join::Sum { Series::Sum } else { Series::Largest };
        let reading = AttributeReading { join: series, of_pod: of_gpus, ..AttributeReading::default() };
        let specs = if of_gpus { &mut self.gpus } else { &mut self.servers };
        if specs.iter().all(|spec| spec.name != name) {
            specs.push(AttributeSpec { id: id.clone(), name: name.to_owned(), metric, reading });
        }
        Ok(Signal::Scraped(id, join))
    }

    /// Adds warnings about settings of a policy that have no effect or were replaced.
    fn warn(&mut self, policy: &Policy, sources: &Sources) {
        let name = &policy.name;
        if policy.mode == Mode::Apply && !sources.can_act {
            self.warnings.push(format!("policy '{name}' has mode Apply: plans are shown and not applied, as endpoints don't come from Kubernetes"));
        }
        if policy.mode == Mode::Apply && sources.can_act && !sources.is_only {
            self.warnings.push(format!("policy '{name}' has mode Apply: {UNELECTED}"));
        }
        if policy.sanitised > 0 {
            self.warnings.push(format!(
                "policy '{name}' has {} invalid values, which were replaced",
                policy.sanitised
            ));
        }
        if !sources.has_queue && policy.roles.iter().any(|role| role.range.min == 0) {
            self.warnings.push(format!("policy '{name}' allows a role without pods, and without the feature gate flowControl no request waits for one: the role never scales up from zero"));
        }
        if sources.has_queries {
            return;
        }
        let unasked = "has source prometheus, which needs --prometheus-address (not set)";
        match &policy.sizing {
            Sizing::Rules(rules) => {
                for rule in rules.iter().filter(|rule| matches!(rule.number, RuleMetric::External(_))) {
                    let rule = &rule.name;
                    self.warnings.push(format!("rule '{rule}' of policy '{name}' {unasked}: it never fires"));
                }
            }
            Sizing::Total(total) => {
                for metric in total.metrics.iter().filter(|metric| metric.signal.is_none()) {
                    let metric = &metric.name;
                    self.warnings
                        .push(format!("metric '{metric}' of policy '{name}' {unasked}: it is never known"));
                }
            }
            Sizing::Kept => {}
        }
    }
}

fn of_policy(policy: &str, error: &ConfigError) -> ConfigError {
    let message = ConfigError::new(format!("policy '{policy}': {}", error.message()));
    match error.hint_text() {
        Some(hint) => message.hint(hint),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(has_queries: bool) -> Sources {
        Sources {
            lease: Box::new(|_| None),
            configured: Vec::new(),
            has_servers: true,
            has_gpus: false,
            has_queue: true,
            has_queries,
            can_act: false,
            is_only: true,
        }
    }

    fn policy(name: &str, interval: &str, sizing: &str) -> String {
        format!(
            "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: {name}}}\nspec: {{interval: {interval}, roles: {{a: {{max: 5}}}}, {sizing}}}\n"
        )
    }

    fn two() -> String {
        let rule = |name: &str| {
            format!(
                "{{name: {name}, role: a, source: prometheus, metric: 'sum(x)', comparator: GREATER_THAN, threshold: 1, step: 1}}"
            )
        };
        let rules = format!("rules: [{}, {}]", rule("one"), rule("two"));
        let total = "total: {metrics: [{name: queue_depth, target: 4}, {name: 'sum(x)', source: prometheus, target: 4}, {name: z, source: prometheus, target: 1}]}";
        format!("{}---\n{}", policy("p", "20s", &rules), policy("q", "5s", total))
    }

    #[test]
    fn shared_query_runs_at_the_shortest_interval() {
        let groups = Groups::read(&two(), &sources(true)).unwrap();
        let five = Duration::from_secs(5);
        assert_eq!(groups.queries(), BTreeMap::from([("sum(x)".into(), five), ("z".into(), five)]));
        assert_eq!(groups.groups[1].signals, [Signal::Waiting], "a query is no number of pods");
        assert!(groups.warnings.is_empty() && groups.servers.is_empty(), "{:?}", groups.warnings);
    }

    #[test]
    fn queries_without_a_prometheus_address_are_warned_of() {
        let warnings = Groups::read(&two(), &sources(false)).unwrap().warnings;
        assert_eq!(warnings.len(), 4, "{warnings:?}");
        for (warning, named) in
            warnings.iter().zip(["rule 'one'", "rule 'two'", "metric 'sum(x)'", "metric 'z'"])
        {
            assert!(warning.starts_with(named) && warning.contains("--prometheus-address"), "{warning}");
        }
    }

    #[test]
    fn query_without_its_source_has_a_hint() {
        let text = policy("p", "5s", "total: {metrics: [{name: 'sum(rate(x[1m]))', target: 4}]}");
        let errors = Groups::read(&text, &sources(true)).unwrap_err();
        let error = errors[0].in_file("f");
        assert!(error.contains("source: prometheus"), "{error}");
    }
}
