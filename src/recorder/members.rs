//! Numbers of endpoints, and lines about them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use usher_core::endpoints::{Endpoint, Gauge, Snapshot};
use usher_core::recording::{EndpointLine, EndpointLoad, Gone, Line, MAX_LABELS};

/// Endpoints that lines may name.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// By slot.
    known: BTreeMap<u32, Member>,
    by_address: HashMap<Arc<str>, u32>,
    next: u32,
    generation: Option<u64>,
}

#[derive(Debug)]
struct Member {
    id: u32,
    endpoint: Arc<Endpoint>,
    /// Size and number of the blocks of its KV cache that were written last.
    cache: [Option<u32>; 2],
}

impl Members {
    /// Takes the members of a snapshot, and returns lines about those that came or went.
    pub(super) fn update(&mut self, snapshot: &Snapshot, at_us: u64) -> Vec<Line> {
        if self.generation.replace(snapshot.generation()) == Some(snapshot.generation()) {
            return Vec::new();
        }
        let mut lines = Vec::new();
        let now: HashMap<u32, &Arc<Endpoint>> =
            snapshot.endpoints().iter().map(|endpoint| (endpoint.slot().number(), endpoint)).collect();
        let is_gone = |(slot, member): (&u32, &Member)| {
            let still =
                now.get(slot).is_some_and(|endpoint| endpoint.authority() == member.endpoint.authority());
            (!still).then_some(*slot)
        };
        let gone: Vec<u32> = self.known.iter().filter_map(is_gone).collect();
        for member in gone.iter().filter_map(|slot| self.known.remove(slot)) {
            self.by_address.remove(member.endpoint.authority());
            lines.push(Line::Gone(Gone { at_us, id: member.id }));
        }
        for endpoint in snapshot.endpoints() {
            lines.extend(self.join(endpoint, at_us));
        }
        lines
    }

    fn join(&mut self, endpoint: &Arc<Endpoint>, at_us: u64) -> Option<Line> {
        let slot = endpoint.slot().number();
        let id = match self.known.get_mut(&slot) {
            Some(member) if Arc::ptr_eq(&member.endpoint, endpoint) => return None,
            Some(member) if member.endpoint.authority() == endpoint.authority() => {
                let is_same = member.endpoint.spec().labels == endpoint.spec().labels;
                member.endpoint = Arc::clone(endpoint);
                if is_same {
                    return None;
                }
                member.id
            }
            _ => {
                let id = self.next;
                self.next += 1;
                let cache = cache(endpoint);
                self.known.insert(slot, Member { id, endpoint: Arc::clone(endpoint), cache });
                self.by_address.insert(Arc::clone(endpoint.authority()), id);
                id
            }
        };
        Some(Line::Endpoint(line(id, endpoint, at_us)))
    }

    /// The number of an endpoint that was picked, with a line about it where it has just joined.
    pub(super) fn id(&mut self, endpoint: &Arc<Endpoint>, at_us: u64) -> (u32, Option<Line>) {
        let known = self.known.get(&endpoint.slot().number());
        if let Some(member) = known.filter(|member| member.endpoint.authority() == endpoint.authority()) {
            return (member.id, None);
        }
        let line = self.join(endpoint, at_us);
        // The next snapshot shows whether it is still there.
        self.generation = None;
        let id = self.known.get(&endpoint.slot().number()).map_or(u32::MAX, |member| member.id);
        (id, line)
    }

    /// The number of the endpoint at an address.
    pub(super) fn at(&self, address: &str) -> Option<u32> {
        self.by_address.get(address).copied()
    }

    /// Lines about all of them, for the start of a file.
    pub(super) fn all(&mut self, at_us: u64) -> Vec<Line> {
        let lines = self.known.values_mut().map(|member| {
            member.cache = cache(&member.endpoint);
            Line::Endpoint(line(member.id, &member.endpoint, at_us))
        });
        lines.collect()
    }

    /// Lines about endpoints whose KV caches have another size than was written last.
    pub(super) fn resized(&mut self, at_us: u64) -> Vec<Line> {
        let mut lines = Vec::new();
        for member in self.known.values_mut() {
            let cache = cache(&member.endpoint);
            if cache != member.cache {
                member.cache = cache;
                lines.push(Line::Endpoint(line(member.id, &member.endpoint, at_us)));
            }
        }
        lines
    }

    /// Bytes that it takes, about.
    pub(super) fn bytes(&self) -> u64 {
        self.known.len() as u64 * 256
    }
}

/// Load of an endpoint as it was read last.
pub(super) fn load(id: u32, endpoint: &Endpoint) -> EndpointLoad {
    let load = endpoint.load();
    let read = |gauge: &Gauge| gauge.read_at_ms().map(|_| rounded(gauge.last()));
    EndpointLoad {
        id,
        waiting: read(&load.waiting),
        running: read(&load.running),
        kv_usage: read(&load.kv_usage),
    }
}

/// A reading in few digits.
fn rounded(value: f64) -> f32 {
    let value = if value.is_finite() { value } else { 0.0 };
    ((value * 1e4).round() / 1e4) as f32
}

/// Size and number of the blocks of an endpoint's KV cache, where it says so.
fn cache(endpoint: &Endpoint) -> [Option<u32>; 2] {
    let load = endpoint.load();
    [&load.block_size, &load.num_blocks].map(|gauge| {
        let value = gauge.read_at_ms().map(|_| gauge.last())?;
        (value >= 1.0 && value <= f64::from(u32::MAX)).then_some(value as u32)
    })
}

fn line(id: u32, endpoint: &Endpoint, at_us: u64) -> EndpointLine {
    let [block_size, num_blocks] = cache(endpoint);
    let mut bytes = 0;
    let labels = endpoint.spec().labels.iter().take_while(|(name, value)| {
        bytes += name.len() + value.len();
        bytes <= MAX_LABELS
    });
    EndpointLine {
        at_us,
        id,
        name: (&**endpoint.id()).into(),
        address: (&**endpoint.authority()).into(),
        labels: labels.map(|(name, value)| (name.clone(), value.clone())).collect(),
        block_size,
        num_blocks,
    }
}
