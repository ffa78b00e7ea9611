//! The simulated servers: equal ones, or those of a file.
//!
//! ```yaml
//! servers:
//! - count: 7                       # default 1
//! - name: slow                     # default server-0, server-1, …
//!   slower: 3                      # its prefill and decode take three times as long
//!   labels: {llm-d.ai/role: decode, topology.kubernetes.io/zone: b}
//!   numBlocks: 10000
//!   joinsAfter: 30s                # not there before
//! - {name: other, model: prefill-first, engineSeed: 3}
//! ```
//!
//! YAML or JSON. What is not said of a server is as the flags say. Where an entry has a
//! model or a seed of its constants, the constants, the batch and the KV cache are those
//! that [`EngineConfig::drawn`] gives, unless the entry says them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::sim::{EngineConfig, ModelKind, Place};
use usher_core::config::{ConfigError, Node, Positioned, duration};
use usher_core::endpoints::{PLACE_LABELS, ROLE_LABEL, Role};

/// Servers of one replay at most.
pub const MOST_SERVERS: usize = 10_000;

/// Slowest server, in times of what the flags say.
const MOST_SLOWER: f64 = 1e6;

/// A simulated server.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Name, unique among them.
    pub name: String,
    /// Labels, as those of a pod.
    pub labels: BTreeMap<String, String>,
    /// Speed and size of the engine.
    pub engine: EngineConfig,
    /// Time at which it becomes a candidate, with an empty cache; zero: it is one from the start.
    pub joins: Duration,
    /// Time at which it gets no more requests; `None`: it stays.
    pub leaves: Option<Duration>,
}

impl Server {
    /// A server without labels.
    pub fn new(name: impl Into<String>, engine: EngineConfig) -> Self {
        Self { name: name.into(), labels: BTreeMap::new(), engine, joins: Duration::ZERO, leaves: None }
    }

    /// Location from its labels.
    pub fn place(&self) -> Place {
        Place::new(PLACE_LABELS.map(|label| self.labels.get(label).map_or("", String::as_str)))
    }

    /// Returns `true` if it is there to compute prompts, as its labels say.
    pub fn is_prefiller(&self) -> bool {
        Role::from_label(self.labels.get(ROLE_LABEL).map(String::as_str)).prefill
    }

    /// Tokens that its KV cache holds.
    pub(super) fn cache_tokens(&self) -> f64 {
        f64::from(self.engine.num_blocks) * f64::from(self.engine.block_size)
    }

    /// Builds `count` equal servers, which differ in their jitter alone.
    pub fn equal(count: usize, engine: &EngineConfig) -> Vec<Self> {
        let servers = (0..count).map(|number| Self::new(format!("server-{number}"), engine.clone()));
        seeded(servers.collect(), engine.seed)
    }

    /// Lets everything take so many times as long; above 0.
    pub fn slow_down(&mut self, times: f64) {
        self.engine.slow_down(times);
    }
}

/// Gives every server a seed of its own.
fn seeded(mut servers: Vec<Server>, seed: u64) -> Vec<Server> {
    for (server, number) in servers.iter_mut().zip(0..) {
        server.engine.seed = seed.wrapping_add(number);
    }
    servers
}

#[derive(Deserialize)]
struct File {
    servers: Option<Vec<Positioned<Entry>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    name: Option<Positioned<String>>,
    count: Option<Positioned<usize>>,
    labels: BTreeMap<String, String>,
    slower: Option<Positioned<f64>>,
    #[serde(deserialize_with = "duration")]
    joins_after: Option<Duration>,
    #[serde(deserialize_with = "model")]
    model: Option<ModelKind>,
    engine_seed: Option<u64>,
    prefill_rate: Option<f64>,
    #[serde(deserialize_with = "duration")]
    decode_step: Option<Duration>,
    batch_factor: Option<f64>,
    jitter: Option<f64>,
    max_running: Option<usize>,
    max_waiting: Option<usize>,
    max_batched_tokens: Option<u32>,
    max_model_len: Option<u32>,
    block_size: Option<u32>,
    num_blocks: Option<u32>,
}

fn model<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ModelKind>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    name.map(|name| name.parse().map_err(D::Error::custom)).transpose()
}

impl Entry {
    fn engine(&self, flags: &EngineConfig) -> EngineConfig {
        let default = match (self.model, self.engine_seed) {
            (None, None) => flags.clone(),
            (model, seed) => EngineConfig {
                max_waiting: flags.max_waiting,
                max_model_len: flags.max_model_len,
                max_loras: flags.max_loras,
                shared_link: flags.shared_link,
                seed: flags.seed,
                ..EngineConfig::drawn(model.unwrap_or(flags.model.kind()), seed.unwrap_or(0))
            },
        };
        EngineConfig {
            prefill_tokens_per_second: self.prefill_rate.unwrap_or(default.prefill_tokens_per_second),
            decode_step: self.decode_step.unwrap_or(default.decode_step),
            batch_factor: self.batch_factor.unwrap_or(default.batch_factor),
            jitter: self.jitter.unwrap_or(default.jitter),
            max_running: self.max_running.unwrap_or(default.max_running),
            max_waiting: self.max_waiting.unwrap_or(default.max_waiting),
            max_batched_tokens: self.max_batched_tokens.unwrap_or(default.max_batched_tokens),
            max_model_len: self.max_model_len.unwrap_or(default.max_model_len),
            block_size: self.block_size.unwrap_or(default.block_size),
            num_blocks: self.num_blocks.unwrap_or(default.num_blocks),
            ..default
        }
    }
}

/// Reads the text of a file of servers. `default`: what is not said of one.
///
/// # Errors
/// `ConfigError` with line and column for the first thing that is wrong.
pub fn parse(text: &str, default: &EngineConfig) -> Result<Vec<Server>, ConfigError> {
    let root = Node::parse(text)?;
    let file: File = root.decode()?;
    let entries = file.servers.unwrap_or_default();
    if entries.is_empty() {
        return Err(
            ConfigError::at(root.at, "there is no server in it").hint("write `servers: [{count: 8}]`")
        );
    }
    let mut servers = Vec::new();
    let mut numbers: HashMap<String, usize> = HashMap::new();
    for Positioned { at, value: entry } in entries {
        let count = entry.count.map_or(1, |count| count.value);
        if count == 0 || servers.len() + count > MOST_SERVERS {
            let at = entry.count.map_or(at, |count| count.at);
            return Err(ConfigError::at(at, format!("there can be 1 to {MOST_SERVERS} servers")));
        }
        let joins = entry.joins_after.unwrap_or_default();
        let mut like =
            Server { labels: entry.labels.clone(), joins, ..Server::new("", entry.engine(default)) };
        if let Some(slower) = entry.slower {
            if !(slower.value > 0.0 && slower.value <= MOST_SLOWER) {
                let message = format!("slower can't be {}", slower.value);
                return Err(
                    ConfigError::at(slower.at, message).hint("3 makes everything take three times as long")
                );
            }
            like.slow_down(slower.value);
        }
        like.engine.validate().map_err(|error| ConfigError::at(at, error.to_string()))?;
        let name = entry.name.as_ref().map_or("server", |name| &name.value);
        for _ in 0..count {
            let number = numbers.entry(name.to_owned()).or_default();
            let alone = entry.name.is_some() && count == 1;
            let name = if alone { name.to_owned() } else { format!("{name}-{number}") };
            *number += 1;
            servers.push((at, Server { name, ..like.clone() }));
        }
    }
    let mut names: HashMap<&str, ()> = HashMap::with_capacity(servers.len());
    for (at, server) in &servers {
        if names.insert(&server.name, ()).is_some() {
            let message = format!("another server is called {}, too", server.name);
            return Err(ConfigError::at(*at, message).hint("give each a name of its own"));
        }
    }
    Ok(seeded(servers.into_iter().map(|(_, server)| server).collect(), default.seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_take_settings_from_the_file() {
        let text = "
servers:
- count: 2
- {name: slow, slower: 3, labels: {zone: b}, maxRunning: 8, decodeStep: 10ms}
- {name: old, count: 2, numBlocks: 100}
";
        let servers = parse(text, &EngineConfig { seed: 40, ..EngineConfig::default() }).unwrap();
        let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
        assert_eq!(names, ["server-0", "server-1", "slow", "old-0", "old-1"]);
        let slow = &servers[2];
        assert_eq!(slow.labels["zone"], "b");
        let EngineConfig { prefill_tokens_per_second, decode_step, max_running, seed, .. } = slow.engine;
        assert_eq!((prefill_tokens_per_second, max_running, seed), (15_928.0 / 3.0, 8, 42));
        assert_eq!(decode_step, Duration::from_millis(30));
        assert_eq!((servers[0].engine.num_blocks, servers[4].engine.num_blocks), (27_000, 100));
        assert_eq!(servers[..2], Server::equal(2, &EngineConfig { seed: 40, ..EngineConfig::default() }));
    }

    #[test]
    fn servers_may_have_other_models_and_constants() {
        let text = "
servers:
- {}
- {model: prefill-first, engineSeed: 3, maxRunning: 8}
- {engineSeed: 4, slower: 2}
";
        let flags = EngineConfig { max_waiting: 7, ..EngineConfig::drawn(ModelKind::ChunkedPrefill, 1) };
        let servers = parse(text, &flags).unwrap();
        let [one, two, three] = [0, 1, 2].map(|number| &servers[number].engine);
        assert_eq!(*one, flags);
        let drawn = EngineConfig::drawn(ModelKind::PrefillFirst, 3);
        assert_eq!(*two, EngineConfig { max_waiting: 7, max_running: 8, seed: 1, ..drawn });
        let mut slow =
            EngineConfig { max_waiting: 7, seed: 2, ..EngineConfig::drawn(ModelKind::ChunkedPrefill, 4) };
        slow.slow_down(2.0);
        assert_eq!(*three, slow);
        assert!(
            slow.work(1000.0, 1000.0, 50.0)
                > 1.9 * EngineConfig::drawn(ModelKind::ChunkedPrefill, 4).work(1000.0, 1000.0, 50.0)
        );
    }

    #[test]
    fn errors_have_their_position() {
        let table = [
            ("[]", "1:1", "expected a map"),
            ("{}", "1:1", "no server in it"),
            ("servers: []", "1:1", "no server in it"),
            ("servers:\n- count: 0", "2:10", "1 to 10000"),
            ("servers:\n- count: 9999\n- count: 2", "3:10", "1 to 10000"),
            ("servers:\n- slower: 0", "2:11", "slower can't be 0"),
            ("servers:\n- speed: 2", "2:3", "speed"),
            ("servers:\n- jitter: 2", "2:3", "jitter"),
            ("servers:\n- model: vllm", "2:10", "known are linear"),
            ("servers:\n- {model: prefill-first, prefillRate: 5}", "2:3", "those of the model linear"),
            ("servers:\n- decodeStep: 5", "2:15", "5"),
            ("servers:\n- name: a\n- name: a", "3:3", "another server is called a"),
        ];
        for (text, place, part) in table {
            let line = parse(text, &EngineConfig::default()).unwrap_err().in_file("f");
            assert!(line.starts_with(&format!("f:{place}: ")) && line.contains(part), "{text:?}: {line}");
        }
    }
}
