//! Policies with the numbers that they name found.

use std::sync::Arc;
use std::time::Duration;

use super::signal::{Join, NAMED, Signal};
use crate::capacity::policy::{Mode, Sizing, WAITING, file};
use crate::capacity::{Policy, rules::Number};
use crate::config::ConfigError;
use crate::endpoints::{AttributeId, Lease};
use crate::scrape::{AttributeReading, AttributeSpec, Join as Series, parse_selector};

/// Longest and shortest time between two looks at numbers that are read for policies.
const SLOWEST: Duration = Duration::from_secs(5);
const FASTEST: Duration = Duration::from_secs(1);

/// A policy, with the numbers that it names.
#[derive(Clone, Debug)]
pub struct Group {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Its numbers, in the order of its signals.
    pub signals: Vec<Signal>,
}

/// The policies of a file, and what is to be read for them.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// By their order in the file.
    pub groups: Vec<Group>,
    /// Metrics of the model servers' own pages.
    pub servers: Vec<AttributeSpec>,
    /// Metrics of the GPU exporters' pages.
    pub gpus: Vec<AttributeSpec>,
    /// What looks wrong and may be meant, a sentence each.
    pub warnings: Vec<String>,
}

type Leasing = Box<dyn Fn(&str) -> Option<Lease<AttributeId>> + Send + Sync>;

/// Where numbers can come from.
pub struct Sources {
    /// Gives a name a place in every endpoint's load; `None`: there is none left.
    pub lease: Leasing,
    /// What extractors of the configuration read, by name.
    pub configured: Vec<(AttributeId, String)>,
    /// Whether a data source reads the model servers' metrics.
    pub has_servers: bool,
    /// Whether one reads the GPU exporters'.
    pub has_gpus: bool,
    /// Whether requests can wait.
    pub has_queue: bool,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").field("configured", &self.configured).finish_non_exhaustive()
    }
}

impl Groups {
    /// Reads the policies of a text, and finds the numbers that they name.
    ///
    /// # Errors
    /// All that is wrong: what is wrong with the text, and names of numbers that nothing has.
    pub fn read(text: &str, sources: &Sources) -> Result<Self, Vec<ConfigError>> {
        let (mut all, mut errors) = (Self::default(), Vec::new());
        for read in file::parse(text)? {
            all.warnings.extend(read.warnings.iter().map(ToString::to_string));
            let policy = read.policy;
            let mut signals = Vec::with_capacity(policy.signals.len());
            for name in &policy.signals {
                match all.signal(name, sources) {
                    Ok(signal) => signals.push(signal),
                    Err(error) => errors.push(of_policy(&policy.name, &error)),
                }
            }
            all.warn(&policy, sources);
            all.groups.push(Group { policy: Arc::new(policy), signals });
        }
        if errors.is_empty() { Ok(all) } else { Err(errors) }
    }

    /// How often the numbers are read that are read for policies only.
    pub fn interval(&self) -> Duration {
        let shortest = self.groups.iter().map(|group| group.policy.interval).min();
        shortest.map_or(SLOWEST, |shortest| (shortest / 3).clamp(FASTEST, SLOWEST))
    }

    fn signal(&mut self, name: &str, sources: &Sources) -> Result<Signal, ConfigError> {
        if let Some(signal) = Signal::named(name) {
            return Ok(signal);
        }
        if let Some((id, _)) = sources.configured.iter().find(|(_, known)| known == name) {
            return Ok(Signal::Configured(*id, Join::of(name)));
        }
        if name == WAITING {
            let text = "requests that wait are no number of pods: they count with queue_depth, and rules can name them";
            return Err(ConfigError::new(text));
        }
        let known =
            || NAMED.iter().map(|(name, _)| *name).chain(sources.configured.iter().map(|(_, n)| n.as_str()));
        let unknown = |why: &str| {
            let known: Vec<&str> = known().collect();
            ConfigError::new(format!("unknown metric '{name}': {why}"))
                .hint(format!("known are {}", known.join(", ")))
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
            return Err(ConfigError::new(format!("there is no place for metric '{name}'")).hint(format!(
                "extractors and policies can name {most} metrics in all; those of an earlier version of the file count for half a minute"
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

    /// What a policy asks for and doesn't get.
    fn warn(&mut self, policy: &Policy, sources: &Sources) {
        let name = &policy.name;
        if policy.mode == Mode::Apply {
            self.warnings.push(format!("policy '{name}' has mode Apply: its plans are shown, and nobody here carries them out; KEDA or an HPA can"));
        }
        if policy.sanitised > 0 {
            self.warnings.push(format!(
                "policy '{name}' has {} values that can't stand and were replaced",
                policy.sanitised
            ));
        }
        if !sources.has_queue && policy.roles.iter().any(|role| role.range.min == 0) {
            self.warnings.push(format!("policy '{name}' lets a role have no pods, and without the feature gate flowControl no request waits for one: nothing brings it back"));
        }
        let Sizing::Rules(rules) = &policy.sizing else { return };
        for rule in rules.iter().filter(|rule| matches!(rule.number, Number::External(_))) {
            let rule = &rule.name;
            self.warnings.push(format!("rule '{rule}' of policy '{name}' has source prometheus, and nobody here asks queries: it never fires"));
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
