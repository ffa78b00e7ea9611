//! Sends this replica's requests in flight to others, and writes theirs into the endpoints.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};
use usher_core::endpoints::{InFlightId, Lease, Load, Store};

use super::link::Event;
use super::message::{COUNTERS, Count, Counts, EndpointKey, Malformed, Message};
use super::metrics::ReplicasMetrics;
use super::origins::{Origins, Taken};
use super::publisher::Publisher;

/// Shortest time between two messages, and between two looks at what is in flight.
pub(super) const INTERVAL: Duration = Duration::from_millis(20);

/// Events taken at once.
const AT_ONCE: usize = 256;

/// Counters of a producer, known to other replicas by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedCounter {
    /// Name of the producer.
    pub name: String,
    /// Its counters in each endpoint, held until no configuration shares them.
    pub counters: Lease<InFlightId>,
}

/// Time for which an endpoint without requests is counted after it left: others may report theirs late.
const LINGER: Duration = Duration::from_secs(2);

/// An endpoint.
struct Member {
    key: EndpointKey,
    load: Arc<Load>,
    /// Uid of its pod.
    uid: Option<String>,
}

impl Member {
    /// Returns `true` if a replica has a request there.
    fn is_busy(&self) -> bool {
        self.load.in_flight() > 0 || self.load.others() > 0
    }
}

/// The one writer of what other replicas have in flight.
pub(super) struct Driver {
    store: Arc<Store>,
    /// Counters of the configuration that runs.
    shared: watch::Receiver<Vec<SharedCounter>>,
    counting: Vec<SharedCounter>,
    /// Names of the counters in messages: of all requests first.
    names: Vec<String>,
    origins: Origins,
    publisher: Publisher,
    /// Generation of the snapshot that the members are of.
    generation: Option<u64>,
    members: Vec<Member>,
    places: HashMap<EndpointKey, usize>,
    /// Endpoints that left with requests, and the times until which they stay without.
    departed: Vec<(Member, Instant)>,
    /// Uids of the pods that this replica is about to remove, and that others are.
    draining: BTreeSet<String>,
    draining_elsewhere: BTreeSet<String>,
    is_up: bool,
    outgoing: watch::Sender<Vec<u8>>,
    events: mpsc::Receiver<Event>,
    metrics: ReplicasMetrics,
    /// Replicas whose age is shown.
    shown: HashSet<String>,
}

impl Driver {
    pub(super) fn new(
        store: Arc<Store>,
        shared: watch::Receiver<Vec<SharedCounter>>,
        (origins, publisher): (Origins, Publisher),
        (outgoing, events): (watch::Sender<Vec<u8>>, mpsc::Receiver<Event>),
        metrics: ReplicasMetrics,
    ) -> Self {
        let mut driver = Self {
            store,
            shared,
            counting: Vec::new(),
            names: Vec::new(),
            origins,
            publisher,
            generation: None,
            members: Vec::new(),
            places: HashMap::new(),
            departed: Vec::new(),
            draining: BTreeSet::new(),
            draining_elsewhere: BTreeSet::new(),
            is_up: false,
            outgoing,
            events,
            metrics,
            shown: HashSet::new(),
        };
        driver.count();
        driver
    }

    /// Goes on until the connection's task is gone.
    pub(super) async fn run(mut self) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events = Vec::with_capacity(AT_ONCE);
        loop {
            tokio::select! {
                // By the schedule, not by when this runs: a late tick is not to make the next one too early.
                at = ticks.tick() => self.tick(at),
                taken = self.events.recv_many(&mut events, AT_ONCE) => {
                    if taken == 0 {
                        return;
                    }
                    let now = Instant::now();
                    events.drain(..).for_each(|event| self.take(event, now));
                    self.write();
                }
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        if self.shared.has_changed().unwrap_or(false) {
            self.count();
        }
        self.follow(now);
        self.origins.expire(now);
        self.write();
        self.departed.retain(|(member, until)| *until > now || member.is_busy());
        self.metrics.show(&self.origins.ages(now), &mut self.shown);
        if self.is_up
            && let Some(message) = self.publisher.next(&self.names, &self.in_flight(), &self.going(), now)
        {
            self.outgoing.send_replace(message.encode());
        }
    }

    /// Takes the counters of the configuration that runs.
    fn count(&mut self) {
        let next = self.shared.borrow_and_update().clone();
        let clears = |load: &Load| {
            self.counting.iter().for_each(|gone| load.in_flight_of(gone.counters.id()).report(0, 0));
        };
        self.all().for_each(|member| clears(&member.load));
        self.counting = next;
        self.counting.truncate(COUNTERS - 1);
        let producers = self.counting.iter().map(|counter| counter.name.clone());
        self.names = std::iter::once(String::new()).chain(producers).collect();
        self.origins.count(self.names.clone());
        self.publisher.begin();
    }

    /// Follows the membership, and the pods that are about to go. An endpoint that is new may be one of which
    /// others have said something.
    fn follow(&mut self, now: Instant) {
        self.draining = self.store.draining();
        if self.generation == Some(self.store.generation()) {
            return;
        }
        let snapshot = self.store.snapshot();
        let member = |endpoint: &Arc<usher_core::endpoints::Endpoint>| Member {
            key: EndpointKey::new(endpoint.identity(), endpoint.address()),
            load: Arc::clone(endpoint.load()),
            uid: endpoint.spec().uid.clone(),
        };
        let before = std::mem::replace(&mut self.members, snapshot.endpoints().iter().map(member).collect());
        self.places = self.members.iter().map(|member| member.key).zip(0..).collect();
        self.departed.extend(before.into_iter().map(|member| (member, now + LINGER)));
        self.departed.retain(|(member, _)| !self.places.contains_key(&member.key));
        self.generation = Some(snapshot.generation());
        self.members.iter().for_each(|member| self.report(member));
    }

    /// Endpoints of the snapshot, and those that left with requests.
    fn all(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().chain(self.departed.iter().map(|(member, _)| member))
    }

    /// Endpoints that this replica is about to remove.
    fn going(&self) -> Vec<EndpointKey> {
        let goes = |member: &&Member| member.uid.as_ref().is_some_and(|uid| self.draining.contains(uid));
        self.members.iter().filter(goes).map(|member| member.key).collect()
    }

    fn take(&mut self, event: Event, now: Instant) {
        match event {
            Event::Up => {
                self.is_up = true;
                self.publisher.begin();
            }
            Event::Down => self.is_up = false,
            Event::Message(bytes) => {
                let result = match Message::decode(&bytes) {
                    Err(Malformed::Version) => "version",
                    Err(Malformed::Length) => "length",
                    Ok(message) => {
                        let asks = message.asks;
                        match self.origins.take(message, now) {
                            Taken::Counted => {
                                if asks {
                                    self.publisher.answer();
                                }
                                "counted"
                            }
                            Taken::Own => "own",
                            Taken::Old => "old",
                            Taken::Full => "too_many",
                        }
                    }
                };
                self.metrics.messages.with_label_values(&[result]).inc();
            }
        }
    }

    /// Writes the sums that changed.
    fn write(&mut self) {
        let changed = self.origins.changed();
        let mut wrote = false;
        for key in &changed {
            let member = match self.places.get(key) {
                Some(place) => self.members.get(*place),
                None => self.departed.iter().map(|(member, _)| member).find(|member| member.key == *key),
            };
            if let Some(member) = member {
                self.report(member);
                wrote = true;
            }
        }
        if wrote {
            // Requests that wait may have room now.
            self.store.loads_changed();
        }
        let places = self.origins.draining().filter_map(|key| self.places.get(key));
        let uids = places.filter_map(|place| self.members.get(*place)?.uid.clone()).collect();
        if self.draining_elsewhere != uids {
            self.store.set_draining_elsewhere(uids.clone());
            self.draining_elsewhere = uids;
        }
    }

    fn report(&self, member: &Member) {
        let [(requests, _), producers @ ..] = self.origins.at(member.key);
        member.load.report_others(requests);
        for (counter, (requests, tokens)) in self.counting.iter().zip(producers) {
            member.load.in_flight_of(counter.counters.id()).report(requests, tokens);
        }
    }

    /// Endpoints at which this replica has something in flight.
    fn in_flight(&self) -> Vec<(EndpointKey, Counts)> {
        let counts = |member: &Member| {
            let mut counts = Counts::default();
            let own = std::iter::once(Count::new(u64::try_from(member.load.in_flight()).unwrap_or(0), 0));
            let producers = self.counting.iter().map(|counter| {
                let counted = member.load.in_flight_of(counter.counters.id());
                Count::new(counted.own_requests(), counted.own_tokens())
            });
            for (into, count) in counts.iter_mut().zip(own.chain(producers)) {
                *into = count;
            }
            (member.key, counts)
        };
        let all = self.all().map(counts);
        all.filter(|(_, counts)| *counts != Counts::default()).collect()
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use usher_core::endpoints::{EndpointSpec, Share};

    use super::super::message::Origin;
    use super::*;

    const TTL: Duration = Duration::from_secs(2);

    /// A replica without a connection, whose messages are carried by hand.
    struct Replica {
        driver: Driver,
        sent: watch::Receiver<Vec<u8>>,
        shares: watch::Sender<Vec<SharedCounter>>,
        store: Arc<Store>,
        _events: mpsc::Sender<Event>,
    }

    fn pod(name: &str, uid: &str) -> EndpointSpec {
        EndpointSpec { uid: Some(uid.to_owned()), ..EndpointSpec::new(name, ([10, 0, 0, 1], 8000)) }
    }

    fn counter(name: &str, index: usize) -> SharedCounter {
        SharedCounter { name: name.to_owned(), counters: InFlightId::new(index).unwrap().into() }
    }

    impl Replica {
        fn new(origin: u128, counters: Vec<SharedCounter>) -> Self {
            let store = Arc::new(Store::default());
            store.replace(vec![pod("a", "u1")]);
            let (shares, shared) = watch::channel(counters);
            let (outgoing, sent) = watch::channel(Vec::new());
            let (events, taken) = mpsc::channel(1);
            let parts = (
                Origins::new(Origin(origin), TTL),
                Publisher::new(Origin(origin), format!("replica-{origin}"), INTERVAL, TTL),
            );
            let metrics = ReplicasMetrics::register(&Registry::new()).unwrap();
            let mut driver = Driver::new(Arc::clone(&store), shared, parts, (outgoing, taken), metrics);
            driver.take(Event::Up, Instant::now());
            driver.follow(Instant::now());
            Self { driver, sent, shares, store, _events: events }
        }

        fn load(&self) -> Arc<Load> {
            Arc::clone(self.store.snapshot().endpoints()[0].load())
        }

        /// Tells another what is due.
        fn tell(&mut self, other: &mut Self, now: Instant) -> bool {
            self.driver.tick(now);
            let is_new = self.sent.has_changed().unwrap();
            if is_new {
                other.driver.take(Event::Message(self.sent.borrow_and_update().clone()), now);
                other.driver.write();
            }
            is_new
        }

        /// Requests and tokens of the others, as producers' counters and all requests have them.
        fn reported(&self, index: usize) -> (u64, u64, i64) {
            let load = self.load();
            let counted = load.in_flight_of(InFlightId::new(index).unwrap());
            let requests = counted.requests() - counted.own_requests();
            (requests, counted.tokens() - counted.own_tokens(), load.others())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_one_replica_count_at_the_other_until_they_end() {
        // Each has its own place for the counters.
        let (mut a, mut b) = (Replica::new(1, vec![counter("p", 0)]), Replica::new(2, vec![counter("p", 3)]));
        let mut now = Instant::now();
        let share = Share::new(&a.load(), InFlightId::new(0).unwrap(), 100);
        let booked = a.load().book();
        assert!(a.tell(&mut b, now));
        assert_eq!(b.reported(3), (1, 100, 1));
        assert!(b.tell(&mut a, now));
        assert_eq!(a.reported(0), (0, 0, 0), "what it hears of others is not told on");
        drop((share, booked));
        now += INTERVAL;
        assert!(a.tell(&mut b, now));
        assert_eq!(b.reported(3), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn shares_of_a_replica_that_dies_are_gone_after_the_ttl() {
        let (mut a, mut b) = (Replica::new(1, vec![counter("p", 0)]), Replica::new(2, vec![counter("p", 0)]));
        let now = Instant::now();
        let _share = Share::new(&a.load(), InFlightId::new(0).unwrap(), 100);
        a.tell(&mut b, now);
        b.driver.tick(now + TTL - Duration::from_millis(1));
        assert_eq!(b.reported(0), (1, 100, 0));
        b.driver.tick(now + TTL);
        assert_eq!(b.reported(0), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn late_endpoint_has_shared_counts_and_its_successor_none() {
        let (mut a, mut b) = (Replica::new(1, vec![counter("p", 0)]), Replica::new(2, vec![counter("p", 0)]));
        let now = Instant::now();
        b.store.replace(Vec::new());
        let _share = Share::new(&a.load(), InFlightId::new(0).unwrap(), 100);
        b.driver.tick(now);
        a.tell(&mut b, now);
        b.store.replace(vec![pod("a", "u1")]);
        b.driver.tick(now);
        assert_eq!(b.reported(0), (1, 100, 0));
        b.store.replace(vec![pod("a", "u2")]);
        b.driver.tick(now);
        assert_eq!(b.reported(0), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn draining_pods_get_no_requests_from_other_replicas() {
        let (mut a, mut b) = (Replica::new(1, Vec::new()), Replica::new(2, Vec::new()));
        let mut now = Instant::now();
        let two = || {
            let other =
                EndpointSpec { uid: Some("u2".to_owned()), ..EndpointSpec::new("b", ([10, 0, 0, 2], 8000)) };
            vec![pod("a", "u1"), other]
        };
        for replica in [&a, &b] {
            replica.store.replace(two());
        }
        let names = |replica: &Replica| -> Vec<String> {
            let candidates = replica.store.snapshot().all();
            candidates.view().iter().map(|endpoint| endpoint.name().to_owned()).collect()
        };
        b.driver.tick(now);
        a.store.set_draining(BTreeSet::from(["u2".to_owned()]));
        assert!(a.tell(&mut b, now));
        assert_eq!((names(&a), names(&b)), (vec!["a".to_owned()], vec!["a".to_owned()]));
        now += INTERVAL;
        assert!(b.tell(&mut a, now));
        a.store.set_draining(BTreeSet::new());
        now += INTERVAL;
        assert!(a.tell(&mut b, now), "what it heard of itself keeps nothing");
        assert_eq!((names(&a).len(), names(&b).len()), (2, 2));
        a.store.set_draining(BTreeSet::from(["u2".to_owned()]));
        now += INTERVAL;
        a.tell(&mut b, now);
        b.driver.tick(now + TTL);
        assert_eq!(names(&b).len(), 2, "the one that is silent removes nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_at_an_endpoint_that_left_count_until_they_end() {
        let (mut a, mut b) = (Replica::new(1, Vec::new()), Replica::new(2, Vec::new()));
        let mut now = Instant::now();
        let (at_a, at_b) = (a.load(), b.load());
        let booked = at_a.book();
        for replica in [&mut a, &mut b] {
            replica.driver.tick(now);
            replica.store.replace(Vec::new());
        }
        now += INTERVAL;
        b.driver.tick(now);
        a.tell(&mut b, now);
        assert_eq!(at_b.others(), 1);
        drop(booked);
        now += LINGER;
        assert!(a.tell(&mut b, now));
        assert_eq!(at_b.others(), 0);
        now += LINGER;
        b.driver.tick(now);
        assert!(b.driver.departed.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn unshared_counters_drop_the_load_of_others() {
        let (mut a, mut b) = (Replica::new(1, vec![counter("p", 0)]), Replica::new(2, vec![counter("p", 0)]));
        let mut now = Instant::now();
        let _share = Share::new(&a.load(), InFlightId::new(0).unwrap(), 100);
        b.driver.tick(now);
        a.tell(&mut b, now);
        assert_eq!(b.reported(0), (1, 100, 0));
        b.shares.send_replace(Vec::new());
        now += INTERVAL;
        assert!(b.tell(&mut a, now));
        assert_eq!(b.reported(0), (0, 0, 0));
        b.shares.send_replace(vec![counter("p", 0)]);
        now += INTERVAL;
        b.tell(&mut a, now);
        assert!(a.tell(&mut b, now), "it asks, and is answered at once");
        assert_eq!(b.reported(0), (1, 100, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_told_while_the_store_is_away() {
        let (mut a, mut b) = (Replica::new(1, Vec::new()), Replica::new(2, Vec::new()));
        let mut now = Instant::now();
        a.driver.take(Event::Down, now);
        assert!(!a.tell(&mut b, now));
        let _booked = a.load().book();
        now += INTERVAL;
        a.driver.take(Event::Up, now);
        assert!(a.tell(&mut b, now));
        assert_eq!(b.load().others(), 1);
    }
}
