//! States of other replicas, and their sums per endpoint: messages and time in, numbers out. No I/O, no clock.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::message::{COUNTERS, Counts, EndpointKey, Message, Origin};
use super::queue::{FlowService, QueueState};

/// Most replicas that are known at once.
pub(super) const MOST_ORIGINS: usize = 64;

/// Time for which a silent replica is remembered, so that its age is seen.
const REMEMBERED: Duration = Duration::from_secs(300);

/// Requests and tokens of all other replicas at an endpoint, by counter.
pub(super) type Sums = [(i64, i64); COUNTERS];

/// Fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The message counts.
    Counted,
    /// The sender is this replica.
    Own,
    /// A later one of its replica counts already.
    Old,
    /// Too many replicas are known.
    Full,
}

/// State that a replica published last.
#[derive(Debug)]
struct Known {
    name: String,
    sequence: u64,
    heard: Instant,
    /// Empty once it has been silent for too long.
    endpoints: HashMap<EndpointKey, Counts>,
    /// Endpoints that get no new requests; empty as well.
    draining: Vec<EndpointKey>,
    /// Requests that wait there; none as well.
    queue: QueueState,
    /// Tokens that flows got there, and when that was heard. They got them also from a replica that is gone.
    service: (Instant, Vec<FlowService>),
}

/// States of other replicas.
#[derive(Debug)]
pub(super) struct Origins {
    own: Origin,
    /// Silence after which a state no longer counts.
    ttl: Duration,
    /// Names of the counters that are summed; others are ignored.
    counters: Vec<String>,
    known: HashMap<Origin, Known>,
    /// Sums of the states, without endpoints that no replica reports.
    sums: HashMap<EndpointKey, Sums>,
    /// Endpoints whose sums changed since they were asked for.
    changed: Vec<EndpointKey>,
    /// Service of flows was heard, or is gone, since it was asked for.
    has_service: bool,
}

impl Origins {
    /// Nothing known of the others yet. `own` is this replica.
    pub(super) fn new(own: Origin, ttl: Duration) -> Self {
        let (known, sums) = (HashMap::new(), HashMap::new());
        Self { own, ttl, counters: Vec::new(), known, sums, changed: Vec::new(), has_service: false }
    }

    /// Silence after which a state no longer counts.
    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Sums these counters from now on. What was heard is forgotten: the others have to say it again.
    pub(super) fn count(&mut self, counters: Vec<String>) {
        self.changed.extend(self.sums.drain().map(|(endpoint, _)| endpoint));
        self.known.clear();
        self.has_service = true;
        self.counters = counters;
        self.counters.truncate(COUNTERS);
    }

    /// Takes a message that came at `now`.
    pub(super) fn take(&mut self, message: Message, now: Instant) -> Taken {
        let Message { origin, sequence, name, counters, endpoints, draining, queue, service, .. } = message;
        if origin == self.own {
            return Taken::Own;
        }
        if let Some(known) = self.known.get(&origin) {
            if sequence <= known.sequence {
                return Taken::Old;
            }
        } else if self.known.len() >= MOST_ORIGINS && !self.forget_silent(now) {
            return Taken::Full;
        }
        // The position of each of our counters among theirs.
        let theirs: Vec<Option<usize>> =
            self.counters.iter().map(|ours| counters.iter().position(|name| name == ours)).collect();
        let ours = |counts: &Counts| {
            let mut ours = Counts::default();
            for (into, at) in ours.iter_mut().zip(&theirs) {
                *into = at.and_then(|at| counts.get(at)).copied().unwrap_or_default();
            }
            ours
        };
        // Of an endpoint that is named twice the last counts.
        let endpoints = endpoints.iter().map(|(endpoint, counts)| (*endpoint, ours(counts))).collect();
        let says_service = service.is_some();
        self.has_service |= says_service;
        let service = (now, service.unwrap_or_default());
        let mut new = Known { name, sequence, heard: now, endpoints, draining, queue, service };
        if let Some(old) = self.known.remove(&origin) {
            if !says_service {
                new.service = old.service;
            }
            self.subtract(&old.endpoints, Some(&new.endpoints));
            self.add(&new.endpoints, Some(&old.endpoints));
        } else {
            self.add(&new.endpoints, None);
        }
        self.known.insert(origin, new);
        Taken::Counted
    }

    /// Counts nothing of those that have been silent for too long at `now`.
    pub(super) fn expire(&mut self, now: Instant) {
        let is_silent = |known: &Known| now.saturating_duration_since(known.heard) >= self.ttl;
        let silent = self.known.values_mut().filter(|known| is_silent(known));
        let forget = |known: &mut Known| {
            known.draining.clear();
            known.queue = QueueState::default();
            std::mem::take(&mut known.endpoints)
        };
        let gone: Vec<_> = silent.map(forget).collect();
        gone.iter().for_each(|endpoints| self.subtract(endpoints, None));
        let remembered = self.known.len();
        self.known.retain(|_, known| now.saturating_duration_since(known.heard) < REMEMBERED);
        self.has_service |= self.known.len() < remembered;
    }

    /// Endpoints whose sums changed since the last call; some may stand there twice.
    pub(super) fn changed(&mut self) -> Vec<EndpointKey> {
        std::mem::take(&mut self.changed)
    }

    /// Sums at an endpoint.
    pub(super) fn at(&self, endpoint: EndpointKey) -> Sums {
        self.sums.get(&endpoint).copied().unwrap_or_default()
    }

    /// Endpoints that other replicas are about to remove; some may stand there twice.
    pub(super) fn draining(&self) -> impl Iterator<Item = &EndpointKey> {
        self.known.values().flat_map(|known| &known.draining)
    }

    /// Queues of the other replicas at which requests wait, always in the same order.
    pub(super) fn queues(&self) -> Vec<QueueState> {
        let mut waits: Vec<_> =
            self.known.iter().filter(|(_, known)| !known.queue.waiting.is_empty()).collect();
        waits.sort_unstable_by_key(|(origin, _)| **origin);
        waits.into_iter().map(|(_, known)| known.queue.clone()).collect()
    }

    /// Tokens that flows got at each of the other replicas, and the time since it was heard, if that is others than at
    /// the last call.
    pub(super) fn service(&mut self, now: Instant) -> Option<Vec<(Duration, Vec<FlowService>)>> {
        let known = || self.known.values().filter(|known| !known.service.1.is_empty());
        std::mem::take(&mut self.has_service).then(|| {
            known()
                .map(|known| (now.saturating_duration_since(known.service.0), known.service.1.clone()))
                .collect()
        })
    }

    /// Names of the other replicas, and the time since each was heard. One that has started again has one entry.
    pub(super) fn ages(&self, now: Instant) -> HashMap<&str, Duration> {
        let mut ages: HashMap<&str, Duration> = HashMap::new();
        for known in self.known.values() {
            let age = now.saturating_duration_since(known.heard);
            ages.entry(&known.name).and_modify(|least| *least = age.min(*least)).or_insert(age);
        }
        ages
    }

    /// Forgets the one that has been silent for longest; `false`: none is silent.
    fn forget_silent(&mut self, now: Instant) -> bool {
        self.expire(now);
        let oldest = self.known.iter().min_by_key(|(origin, known)| (known.heard, **origin));
        let Some((&origin, known)) = oldest else { return false };
        if now.saturating_duration_since(known.heard) < self.ttl {
            return false;
        }
        self.has_service = true;
        self.known.remove(&origin).is_some()
    }

    /// Takes endpoints out of the sums. Those that are the same in `but` count as they are.
    fn subtract(
        &mut self,
        endpoints: &HashMap<EndpointKey, Counts>,
        but: Option<&HashMap<EndpointKey, Counts>>,
    ) {
        for (endpoint, counts) in differing(endpoints, but) {
            let Some(sums) = self.sums.get_mut(endpoint) else { continue };
            for ((requests, tokens), count) in sums.iter_mut().zip(counts) {
                *requests -= i64::from(count.requests);
                *tokens -= i64::from(count.tokens);
            }
            if *sums == Sums::default() {
                self.sums.remove(endpoint);
            }
            self.changed.push(*endpoint);
        }
    }

    fn add(&mut self, endpoints: &HashMap<EndpointKey, Counts>, but: Option<&HashMap<EndpointKey, Counts>>) {
        for (endpoint, counts) in differing(endpoints, but) {
            let sums = self.sums.entry(*endpoint).or_default();
            for ((requests, tokens), count) in sums.iter_mut().zip(counts) {
                *requests += i64::from(count.requests);
                *tokens += i64::from(count.tokens);
            }
            self.changed.push(*endpoint);
        }
    }
}

/// Endpoints that are not the same in `other`.
fn differing<'a>(
    endpoints: &'a HashMap<EndpointKey, Counts>,
    other: Option<&'a HashMap<EndpointKey, Counts>>,
) -> impl Iterator<Item = (&'a EndpointKey, &'a Counts)> {
    endpoints
        .iter()
        .filter(move |(endpoint, counts)| other.is_none_or(|other| other.get(*endpoint) != Some(*counts)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::message::Count;
    use super::*;

    const TTL: Duration = Duration::from_secs(2);

    /// A message with requests and tokens of the one counter at these endpoints.
    fn message(origin: u128, sequence: u64, endpoints: &[(u128, u32)]) -> Message {
        let counts = |requests: u32| {
            let mut counts = Counts::default();
            counts[0] = Count { requests, tokens: requests * 10 };
            counts
        };
        Message {
            origin: Origin(origin),
            sequence,
            asks: false,
            name: format!("replica-{origin}"),
            counters: vec!["p".to_owned()],
            endpoints: endpoints
                .iter()
                .map(|(key, requests)| (EndpointKey(*key), counts(*requests)))
                .collect(),
            draining: Vec::new(),
            queue: QueueState { waiting: vec![(0, sequence as u32)] },
            service: None,
        }
    }

    fn origins() -> (Origins, Instant) {
        let mut origins = Origins::new(Origin(0), TTL);
        origins.count(vec!["p".to_owned()]);
        (origins, Instant::now())
    }

    fn at(origins: &Origins, endpoint: u128) -> (i64, i64) {
        origins.at(EndpointKey(endpoint))[0]
    }

    #[test]
    fn last_states_of_all_others_are_summed() {
        let (mut origins, now) = origins();
        assert_eq!(origins.take(message(1, 1, &[(7, 2), (8, 1)]), now), Taken::Counted);
        assert_eq!(origins.take(message(2, 1, &[(7, 3)]), now), Taken::Counted);
        assert_eq!((at(&origins, 7), at(&origins, 8)), ((5, 50), (1, 10)));
        origins.changed();
        assert_eq!(origins.take(message(1, 2, &[(7, 2)]), now), Taken::Counted);
        assert_eq!((at(&origins, 7), at(&origins, 8)), ((5, 50), (0, 0)));
        assert_eq!(origins.changed(), [EndpointKey(8)], "only what differs is written again");
        origins.take(message(1, 3, &[]), now);
        origins.take(message(2, 2, &[]), now);
        assert!(origins.sums.is_empty(), "when load ends nothing is left");
    }

    #[test]
    fn own_and_old_messages_count_for_nothing() {
        let (mut origins, now) = origins();
        assert_eq!(origins.take(message(0, 9, &[(7, 2)]), now), Taken::Own);
        origins.take(message(1, 5, &[(7, 2)]), now);
        for sequence in [4, 5] {
            assert_eq!(origins.take(message(1, sequence, &[(7, 9)]), now), Taken::Old);
        }
        assert_eq!(at(&origins, 7), (2, 20));
    }

    #[test]
    fn silent_replica_counts_nothing_until_it_speaks_again() {
        let (mut origins, now) = origins();
        origins.take(message(1, 1, &[(7, 2)]), now);
        origins.take(message(2, 1, &[(7, 3)]), now + TTL / 2);
        origins.expire(now + TTL - Duration::from_millis(1));
        assert_eq!(at(&origins, 7), (5, 50));
        origins.changed();
        origins.expire(now + TTL);
        assert_eq!((at(&origins, 7), origins.changed()), ((3, 30), vec![EndpointKey(7)]));
        origins.expire(now + TTL);
        assert_eq!(at(&origins, 7), (3, 30), "it is taken away once");
        assert_eq!(origins.ages(now + TTL)["replica-1"], TTL);
        origins.take(message(1, 2, &[(7, 1)]), now + 2 * TTL);
        assert_eq!(at(&origins, 7), (4, 40));
        origins.expire(now + REMEMBERED + TTL);
        assert_eq!(origins.ages(now + TTL).len(), 1);
    }

    #[test]
    fn queues_of_replicas_that_speak_are_known() {
        let (mut origins, now) = origins();
        let waits = |origins: &Origins| -> Vec<u32> {
            origins.queues().iter().flat_map(|queue| &queue.waiting).map(|(_, requests)| *requests).collect()
        };
        origins.take(message(2, 7, &[]), now + TTL / 2);
        origins.take(message(1, 5, &[]), now);
        assert_eq!(waits(&origins), [5, 7]);
        origins.expire(now + TTL);
        assert_eq!(waits(&origins), [7]);
        origins.take(Message { queue: QueueState::default(), ..message(2, 8, &[]) }, now + TTL);
        assert!(origins.queues().is_empty());
    }

    #[test]
    fn service_of_flows_holds_until_other_is_heard_or_the_replica_is_forgotten() {
        let (mut origins, now) = origins();
        let says = |sequence: u64, tokens: u32| {
            let service = vec![FlowService { priority: 0, flow: 7, tokens }];
            Message { service: Some(service), ..message(1, sequence, &[]) }
        };
        let tokens = |origins: &mut Origins, now: Instant| {
            let service = origins.service(now)?;
            Some(service.iter().map(|(age, flows)| (*age, flows[0].tokens)).collect::<Vec<_>>())
        };
        origins.service(now);
        let later = now + TTL / 2;
        origins.take(says(1, 5), now);
        origins.take(message(1, 2, &[]), later);
        assert_eq!(tokens(&mut origins, later), Some(vec![(TTL / 2, 5)]), "it is as old as it is");
        assert_eq!(tokens(&mut origins, later), None, "nothing is new");
        origins.take(says(3, 6), later);
        assert_eq!(tokens(&mut origins, later), Some(vec![(Duration::ZERO, 6)]));
        origins.expire(later + TTL);
        assert_eq!(tokens(&mut origins, later + TTL), None, "flows got it all the same");
        origins.expire(later + REMEMBERED);
        assert_eq!(tokens(&mut origins, later + REMEMBERED), Some(Vec::new()));
    }

    #[test]
    fn counters_are_matched_by_name() {
        let mut origins = Origins::new(Origin(0), TTL);
        origins.count(vec![String::new(), "p".to_owned(), "q".to_owned()]);
        let mut of = message(1, 1, &[(7, 2)]);
        of.counters = vec!["other".to_owned(), "q".to_owned(), String::new()];
        of.endpoints[0].1[1] = Count { requests: 5, tokens: 6 };
        of.endpoints[0].1[2] = Count { requests: 8, tokens: 0 };
        origins.take(of, Instant::now());
        assert_eq!(origins.at(EndpointKey(7))[..3], [(8, 0), (0, 0), (5, 6)]);
        origins.changed();
        origins.count(vec!["p".to_owned()]);
        assert_eq!((at(&origins, 7), origins.changed()), ((0, 0), vec![EndpointKey(7)]));
    }

    #[test]
    fn replicas_beyond_the_bound_wait_for_a_silent_one() {
        let (mut origins, now) = origins();
        for origin in 1..=MOST_ORIGINS as u128 {
            assert_eq!(origins.take(message(origin, 1, &[(7, 1)]), now), Taken::Counted);
        }
        assert_eq!(origins.take(message(100, 1, &[(7, 1)]), now), Taken::Full);
        origins.take(message(1, 2, &[(7, 1)]), now + TTL);
        assert_eq!(origins.take(message(100, 2, &[(7, 1)]), now + TTL), Taken::Counted);
        assert_eq!((at(&origins, 7), origins.known.len()), ((2, 20), MOST_ORIGINS));
    }

    #[test]
    fn replica_that_started_again_is_one_of_its_name() {
        let (mut origins, now) = origins();
        let again = |mut message: Message| {
            message.name = "same".to_owned();
            message
        };
        origins.take(again(message(1, 9, &[])), now);
        origins.take(again(message(2, 1, &[])), now + TTL);
        assert_eq!(origins.ages(now + TTL).into_iter().collect::<Vec<_>>(), [("same", Duration::ZERO)]);
    }

    proptest! {
        /// Sums are those of the states that count, whatever came in which order.
        #[test]
        fn sums_are_those_of_the_last_states(
            steps in proptest::collection::vec(
                (1u128..5, proptest::collection::vec((0u128..4, 0u32..9), 0..5), 0u64..900),
                0..60,
            ),
        ) {
            let (mut origins, mut now) = origins();
            let mut states: HashMap<u128, (Instant, HashMap<u128, u32>)> = HashMap::new();
            for (sequence, (origin, endpoints, pause)) in (1..).zip(steps) {
                now += Duration::from_millis(pause);
                origins.take(message(origin, sequence, &endpoints), now);
                states.insert(origin, (now, endpoints.into_iter().collect()));
                origins.expire(now);
                for endpoint in 0..4 {
                    let alive = states.values().filter(|(heard, _)| now - *heard < TTL);
                    let sum: u32 = alive.filter_map(|(_, state)| state.get(&endpoint)).sum();
                    prop_assert_eq!(at(&origins, endpoint), (i64::from(sum), i64::from(sum) * 10));
                }
            }
            origins.expire(now + TTL);
            prop_assert!(origins.sums.is_empty());
        }
    }
}
