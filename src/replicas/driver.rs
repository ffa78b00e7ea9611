//! Sends this replica's requests, in flight and waiting, to others, and writes theirs into the endpoints and the queue.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};
use usher_core::endpoints::{Clock, Endpoint, InFlightId, Lease, Load, Store};

use super::link::Event;
use super::message::{COUNTERS, Count, Counts, EndpointKey, MOST_ENDPOINTS, Malformed, Message};
use super::metrics::ReplicasMetrics;
use super::origins::{Origins, Taken};
use super::publisher::{Publisher, SERVICE_INTERVAL, State};
use super::queue::{FlowService, QueueState, SharedQueue};

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
    /// Requests that this replica had ever sent there at the last look.
    sent: u64,
    /// No message that the others can have heard has named the endpoint since it got one.
    is_unnamed: bool,
    /// Time until which messages go on naming it: some may be lost.
    recent: Option<Instant>,
}

impl Member {
    /// Returns `true` if a replica has a request there.
    fn is_busy(&self) -> bool {
        self.load.in_flight() > 0 || self.load.others() > 0
    }

    /// Looks for requests that this replica sent there since the last look.
    fn look(&mut self, now: Instant) {
        let sent = self.load.sent();
        self.is_unnamed |= std::mem::replace(&mut self.sent, sent) != sent;
        self.recent = self.recent.filter(|until| *until > now);
    }
}

/// The one writer of what other replicas have in flight.
pub(super) struct Driver {
    store: Arc<Store>,
    queue: Option<Arc<dyn SharedQueue>>,
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
    /// Others named endpoints that weren't there, since the membership changed last.
    left_out: bool,
    /// Endpoints that left with requests, and the times until which they stay without.
    departed: Vec<(Member, Instant)>,
    /// Uids of the pods that this replica is about to remove, and that others are.
    draining: BTreeSet<String>,
    draining_elsewhere: BTreeSet<String>,
    /// Queues of the others, as they were reported last.
    queues_elsewhere: Vec<QueueState>,
    /// Time at which the service of flows at the others was last reported to the queue.
    service_reported: Option<Instant>,
    is_up: bool,
    outgoing: watch::Sender<Vec<u8>>,
    events: mpsc::Receiver<Event>,
    metrics: ReplicasMetrics,
    /// Replicas whose age is shown.
    shown: HashSet<String>,
    /// Clock of the endpoints.
    clock: Clock,
}

impl Driver {
    pub(super) fn new(
        (store, shared, queue): (
            Arc<Store>,
            watch::Receiver<Vec<SharedCounter>>,
            Option<Arc<dyn SharedQueue>>,
        ),
        (origins, publisher, clock): (Origins, Publisher, Clock),
        (outgoing, events): (watch::Sender<Vec<u8>>, mpsc::Receiver<Event>),
        metrics: ReplicasMetrics,
    ) -> Self {
        let mut driver = Self {
            store,
            queue,
            shared,
            counting: Vec::new(),
            names: Vec::new(),
            origins,
            publisher,
            generation: None,
            members: Vec::new(),
            places: HashMap::new(),
            left_out: false,
            departed: Vec::new(),
            draining: BTreeSet::new(),
            draining_elsewhere: BTreeSet::new(),
            queues_elsewhere: Vec::new(),
            service_reported: None,
            is_up: false,
            outgoing,
            events,
            metrics,
            shown: HashSet::new(),
            clock,
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
        self.all_mut().for_each(|member| member.look(now));
        if !self.is_up {
            self.note_unheard();
        }
        self.origins.expire(now);
        self.write();
        self.departed.retain(|(member, until)| *until > now || member.is_busy());
        self.metrics.show(&self.origins.ages(now), &mut self.shown);
        self.report_service(now);
        if self.is_up
            && let Some(message) = self.publisher.next(self.state(), self.service(now), now)
        {
            self.note_named(&message, now);
            self.outgoing.send_replace(message.encode());
        }
    }

    /// State to publish.
    fn state(&self) -> State {
        State {
            counters: self.names.clone(),
            endpoints: self.in_flight(),
            draining: self.going(),
            queue: self.queue.as_ref().map(|queue| queue.state()).unwrap_or_default(),
        }
    }

    /// Tokens that flows got at this replica, if they are due, and the number of events that they are of.
    fn service(&self, now: Instant) -> Option<(u64, Vec<FlowService>)> {
        let queue = self.queue.as_ref()?;
        let events = queue.charged();
        self.publisher.is_service_due(events, now).then(|| (events, queue.service()))
    }

    /// Reports the service of flows at the others to the queue, as often as one of them publishes it: each of many may
    /// do at its time.
    fn report_service(&mut self, now: Instant) {
        let is_early = |at: Instant| now.saturating_duration_since(at) < SERVICE_INTERVAL;
        if let Some(queue) = &self.queue
            && !self.service_reported.is_some_and(is_early)
            && let Some(service) = self.origins.service(now)
        {
            queue.report_service(&service);
            self.service_reported = Some(now);
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
        let before = std::mem::take(&mut self.members);
        let seen: HashMap<EndpointKey, &Member> = before.iter().map(|member| (member.key, member)).collect();
        let member = |endpoint: &Arc<Endpoint>| {
            let key = EndpointKey::new(endpoint.identity(), endpoint.address());
            let (load, uid) = (Arc::clone(endpoint.load()), endpoint.spec().uid.clone());
            let seen = seen.get(&key).filter(|seen| Arc::ptr_eq(&seen.load, &load));
            let (sent, is_unnamed, recent) =
                seen.map_or((0, false, None), |seen| (seen.sent, seen.is_unnamed, seen.recent));
            Member { key, load, uid, sent, is_unnamed, recent }
        };
        self.members = snapshot.endpoints().iter().map(member).collect();
        self.places = self.members.iter().map(|member| member.key).zip(0..).collect();
        self.departed.extend(before.into_iter().map(|member| (member, now + LINGER)));
        self.departed.retain(|(member, _)| !self.places.contains_key(&member.key));
        self.generation = Some(snapshot.generation());
        if std::mem::take(&mut self.left_out) {
            self.publisher.ask();
        }
        self.members.iter().for_each(|member| self.report(member));
    }

    /// Endpoints of the snapshot, and those that left with requests.
    fn all(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().chain(self.departed.iter().map(|(member, _)| member))
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.iter_mut().chain(self.departed.iter_mut().map(|(member, _)| member))
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
            Event::Down => {
                self.is_up = false;
                self.note_unheard();
                // The last messages may be lost, and the connection away for long.
                self.all_mut().for_each(|member| member.is_unnamed |= member.recent.is_some());
            }
            Event::Message(bytes) => {
                let result = match Message::decode(&bytes) {
                    Err(Malformed::Version) => "version",
                    Err(Malformed::Length) => "length",
                    Ok(mut message) => {
                        let asks = message.asks;
                        self.leave_out_unknown(&mut message);
                        let named: Vec<EndpointKey> = message.endpoints.iter().map(|(key, _)| *key).collect();
                        match self.origins.take(message, now) {
                            Taken::Counted => {
                                self.note_sent_elsewhere(&named);
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

    /// Takes out of a message the endpoints that aren't there, so that nobody can make this replica remember more than its
    /// own. The others are asked again once the membership has changed.
    fn leave_out_unknown(&mut self, message: &mut Message) {
        let is_there = |key: &EndpointKey| {
            self.places.contains_key(key) || self.departed.iter().any(|(member, _)| member.key == *key)
        };
        let before = (message.endpoints.len(), message.draining.len());
        message.endpoints.retain(|(key, _)| is_there(key));
        message.draining.sort_unstable();
        message.draining.dedup();
        message.draining.retain(is_there);
        self.left_out |= before != (message.endpoints.len(), message.draining.len());
    }

    /// Notes that another replica sent requests to these endpoints.
    fn note_sent_elsewhere(&self, named: &[EndpointKey]) {
        let now_ms = self.clock.now_ms();
        let members = named.iter().filter_map(|key| self.member(*key));
        members.for_each(|member| member.load.note_sent_elsewhere(now_ms));
    }

    /// Notes that other replicas may send requests anywhere: nobody is heard.
    fn note_unheard(&self) {
        let now_ms = self.clock.now_ms();
        self.all().for_each(|member| member.load.note_sent_elsewhere(now_ms));
    }

    /// Notes that a message is about to be sent. Endpoints that it has no room for are named by a later one.
    fn note_named(&mut self, message: &Message, now: Instant) {
        if !self.all().any(|member| member.is_unnamed) {
            return;
        }
        let until = now + self.origins.ttl();
        let named: HashSet<_> = message.endpoints.iter().take(MOST_ENDPOINTS).map(|(key, _)| *key).collect();
        for member in self.all_mut().filter(|member| member.is_unnamed && named.contains(&member.key)) {
            (member.is_unnamed, member.recent) = (false, Some(until));
        }
    }

    /// The endpoint of a key, which may have left.
    fn member(&self, key: EndpointKey) -> Option<&Member> {
        match self.places.get(&key) {
            Some(place) => self.members.get(*place),
            None => self.departed.iter().map(|(member, _)| member).find(|member| member.key == key),
        }
    }

    /// Writes the sums that changed.
    fn write(&mut self) {
        let changed = self.origins.changed();
        let mut wrote = false;
        for key in &changed {
            if let Some(member) = self.member(*key) {
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
        let queues = self.origins.queues();
        if let Some(queue) = &self.queue
            && self.queues_elsewhere != queues
        {
            queue.report_others(&queues);
            self.queues_elsewhere = queues;
        }
    }

    fn report(&self, member: &Member) {
        let [(requests, _), producers @ ..] = self.origins.at(member.key);
        member.load.report_others(requests);
        for (counter, (requests, tokens)) in self.counting.iter().zip(producers) {
            member.load.in_flight_of(counter.counters.id()).report(requests, tokens);
        }
    }

    /// Endpoints at which this replica has something in flight, then those at which it had lately: a message may not have
    /// room for all.
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
            (member.key, counts, member.is_unnamed || member.recent.is_some())
        };
        let all = self.all().map(counts);
        let named = all.filter(|(_, counts, is_recent)| *is_recent || *counts != Counts::default());
        let named = named.map(|(key, counts, _)| (key, counts));
        let (mut busy, idle): (Vec<_>, Vec<_>) = named.partition(|(_, counts)| *counts != Counts::default());
        busy.extend(idle);
        busy
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
