//! Replicas without a connection, whose messages are carried by hand.

use std::sync::Mutex;

use prometheus::Registry;
use usher_core::endpoints::{EndpointSpec, Share};

use super::super::message::Origin;
use super::*;

const TTL: Duration = Duration::from_secs(2);

/// A queue that is set by hand.
#[derive(Default)]
struct Queue {
    own: Mutex<QueueState>,
    others: Mutex<Vec<QueueState>>,
    service: Mutex<Vec<FlowService>>,
    service_of_others: Mutex<Vec<(Duration, Vec<FlowService>)>>,
}

impl SharedQueue for Queue {
    fn state(&self) -> QueueState {
        self.own.lock().unwrap().clone()
    }

    fn report_others(&self, others: &[QueueState]) {
        *self.others.lock().unwrap() = others.to_vec();
    }

    fn charged(&self) -> u64 {
        self.service.lock().unwrap().iter().map(|flow| u64::from(flow.tokens)).sum()
    }

    fn service(&self) -> Vec<FlowService> {
        self.service.lock().unwrap().clone()
    }

    fn report_service(&self, others: &[(Duration, Vec<FlowService>)]) {
        *self.service_of_others.lock().unwrap() = others.to_vec();
    }
}

/// A replica without a connection.
struct Replica {
    driver: Driver,
    sent: watch::Receiver<Vec<u8>>,
    shares: watch::Sender<Vec<SharedCounter>>,
    store: Arc<Store>,
    queue: Arc<Queue>,
    clock: Clock,
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
        let clock = Clock::stopped();
        let parts = (
            Origins::new(Origin(origin), TTL),
            Publisher::new(Origin(origin), format!("replica-{origin}"), INTERVAL, TTL),
            clock.clone(),
        );
        let metrics = ReplicasMetrics::register(&Registry::new()).unwrap();
        let queue = Arc::new(Queue::default());
        let of = (Arc::clone(&store), shared, Some(Arc::clone(&queue) as Arc<dyn SharedQueue>));
        let mut driver = Driver::new(of, parts, (outgoing, taken), metrics);
        driver.take(Event::Up, Instant::now());
        driver.follow(Instant::now());
        Self { driver, sent, shares, store, queue, clock, _events: events }
    }

    fn load(&self) -> Arc<Load> {
        Arc::clone(self.store.snapshot().endpoints()[0].load())
    }

    /// Publishes what is due to another replica.
    fn publish_to(&mut self, other: &mut Self, now: Instant) -> bool {
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
    assert!(a.publish_to(&mut b, now));
    assert_eq!(b.reported(3), (1, 100, 1));
    assert!(b.publish_to(&mut a, now));
    assert_eq!(a.reported(0), (0, 0, 0), "what it receives is not published on");
    drop((share, booked));
    now += INTERVAL;
    assert!(a.publish_to(&mut b, now));
    assert_eq!(b.reported(3), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn shares_of_a_replica_that_dies_are_gone_after_the_ttl() {
    let (mut a, mut b) = (Replica::new(1, vec![counter("p", 0)]), Replica::new(2, vec![counter("p", 0)]));
    let now = Instant::now();
    let _share = Share::new(&a.load(), InFlightId::new(0).unwrap(), 100);
    a.publish_to(&mut b, now);
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
    a.publish_to(&mut b, now);
    b.store.replace(vec![pod("a", "u1")]);
    b.driver.tick(now);
    assert_eq!(b.reported(0), (1, 100, 0));
    b.store.replace(vec![pod("a", "u2")]);
    b.driver.tick(now);
    assert_eq!(b.reported(0), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn requests_at_an_endpoint_are_asked_for_when_it_comes() {
    let (mut a, mut b) = (Replica::new(1, Vec::new()), Replica::new(2, Vec::new()));
    let pods = || vec![EndpointSpec::new("new", ([10, 0, 0, 2], 8000))];
    let now = Instant::now();
    a.store.replace(pods());
    let _booked = a.load().book();
    b.driver.tick(now);
    a.publish_to(&mut b, now);
    b.store.replace(pods());
    let now = now + INTERVAL;
    assert!(b.publish_to(&mut a, now), "it asks");
    assert!(a.publish_to(&mut b, now));
    assert_eq!(b.load().others(), 1);
}

#[tokio::test(start_paused = true)]
async fn endpoints_that_are_not_there_are_not_remembered() {
    let mut replica = Replica::new(1, vec![counter("p", 0)]);
    let member = replica.driver.members[0].key;
    let mut counts = Counts::default();
    counts[0] = Count::new(1, 0);
    for origin in 2..40 {
        let invented = (0..4095).map(|key| EndpointKey(origin << 64 | key));
        let keys: Vec<_> = invented.chain([member]).collect();
        let message = Message {
            origin: Origin(origin),
            sequence: 1,
            asks: false,
            name: "r".to_owned(),
            counters: vec![String::new()],
            endpoints: keys.iter().map(|key| (*key, counts)).collect(),
            draining: [keys.clone(), vec![member; 9]].concat(),
            queue: QueueState::default(),
            service: None,
        };
        replica.driver.take(Event::Message(message.encode()), Instant::now());
        let of_one = replica.driver.origins.draining().filter(|key| **key == member).count();
        assert_eq!(of_one, origin as usize - 1);
    }
    assert!(replica.driver.origins.draining().all(|key| *key == member));
    replica.driver.write();
    assert_eq!(replica.load().others(), 38);
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
    assert!(a.publish_to(&mut b, now));
    assert_eq!((names(&a), names(&b)), (vec!["a".to_owned()], vec!["a".to_owned()]));
    now += INTERVAL;
    assert!(b.publish_to(&mut a, now));
    a.store.set_draining(BTreeSet::new());
    now += INTERVAL;
    assert!(a.publish_to(&mut b, now), "what it received of itself keeps nothing");
    assert_eq!((names(&a).len(), names(&b).len()), (2, 2));
    a.store.set_draining(BTreeSet::from(["u2".to_owned()]));
    now += INTERVAL;
    a.publish_to(&mut b, now);
    b.driver.tick(now + TTL);
    assert_eq!(names(&b).len(), 2, "the one that is silent removes nothing");
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_at_one_replica_are_known_to_the_other() {
    let (mut a, mut b) = (Replica::new(1, Vec::new()), Replica::new(2, Vec::new()));
    let mut now = Instant::now();
    let waits = QueueState { waiting: vec![(7, 2), (0, 1)] };
    assert!(a.publish_to(&mut b, now));
    *a.queue.own.lock().unwrap() = waits.clone();
    now += INTERVAL;
    assert!(a.publish_to(&mut b, now), "a queue that changes is published");
    assert_eq!(*b.queue.others.lock().unwrap(), [waits]);
    b.driver.tick(now + TTL);
    assert_eq!(*b.queue.others.lock().unwrap(), [], "the one that is silent has none");
}

#[tokio::test(start_paused = true)]
async fn service_of_flows_is_known_to_the_other_replica() {
    let (mut a, mut b) = (Replica::new(1, Vec::new()), Replica::new(2, Vec::new()));
    let mut now = Instant::now();
    a.publish_to(&mut b, now);
    let service = vec![FlowService { priority: 0, flow: 7, tokens: 100 }];
    *a.queue.service.lock().unwrap() = service.clone();
    now += SERVICE_INTERVAL;
    assert!(a.publish_to(&mut b, now), "service is published");
    now += SERVICE_INTERVAL;
    b.driver.tick(now);
    assert_eq!(*b.queue.service_of_others.lock().unwrap(), [(SERVICE_INTERVAL, service)]);
    assert!(b.queue.service().is_empty(), "what it receives is not published on");
    b.driver.tick(now + TTL);
    assert!(!b.queue.service_of_others.lock().unwrap().is_empty(), "flows got it, whoever is gone");
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
    a.publish_to(&mut b, now);
    assert_eq!(at_b.others(), 1);
    drop(booked);
    now += LINGER;
    assert!(a.publish_to(&mut b, now));
    assert_eq!(at_b.others(), 0);
    now += LINGER;
    b.driver.tick(now);
    assert!(b.driver.departed.is_empty());
}

#[tokio::test(start_paused = true)]
async fn request_that_ended_between_messages_is_known_elsewhere() {
    let (mut a, mut b) = (Replica::new(1, Vec::new()), Replica::new(2, Vec::new()));
    let mut now = Instant::now();
    a.publish_to(&mut b, now);
    b.publish_to(&mut a, now);
    assert_eq!(b.load().sent_elsewhere_ms(), None, "nothing was sent");
    drop(a.load().book());
    for second in 1..=5u64 {
        // Membership that changes makes no request of an older one, nor loses one.
        let new = EndpointSpec::new(format!("b{second}"), ([10, 0, 0, 2], 8000));
        a.store.replace(vec![pod("a", "u1"), new]);
        now += Duration::from_secs(1);
        b.clock.set(Duration::from_secs(second));
        a.publish_to(&mut b, now);
        // As long as some of the messages that say it could be lost.
        assert_eq!(b.load().sent_elsewhere_ms(), Some(second.min(2) * 1000 + 1), "{second}");
        assert_eq!((b.load().others(), b.load().sent()), (0, 0));
    }
    assert!(b.publish_to(&mut a, now));
    assert_eq!(a.load().sent_elsewhere_ms(), None, "what it received is not published on");
}

#[tokio::test(start_paused = true)]
async fn request_that_ended_while_the_store_was_away_is_known_elsewhere_later() {
    for is_lost in [false, true] {
        let (mut a, mut b) = (Replica::new(1, Vec::new()), Replica::new(2, Vec::new()));
        let mut now = Instant::now();
        a.publish_to(&mut b, now);
        now += INTERVAL;
        if is_lost {
            drop(a.load().book());
            a.driver.tick(now);
            assert!(a.sent.has_changed().unwrap(), "on its way when the connection ended");
        }
        a.driver.take(Event::Down, now);
        if !is_lost {
            drop(a.load().book());
        }
        for _ in 0..3 {
            now += TTL;
            a.driver.tick(now);
        }
        a.sent.mark_unchanged();
        assert_eq!(b.load().sent_elsewhere_ms(), None);
        a.driver.take(Event::Up, now);
        for second in [9, 10, 11] {
            b.clock.set(Duration::from_secs(second));
            assert!(a.publish_to(&mut b, now));
            assert_eq!(b.load().sent_elsewhere_ms(), Some(9001), "{is_lost}");
            now += TTL;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn load_goes_before_requests_that_ended_and_none_of_these_is_left_out() {
    let (mut a, mut b) = (Replica::new(1, Vec::new()), Replica::new(2, Vec::new()));
    let count = MOST_ENDPOINTS + 10;
    let mut now = Instant::now();
    for replica in [&mut a, &mut b] {
        let pods = (0..count).map(|pod| EndpointSpec::new(format!("{pod:05}"), ([10, 0, 0, 1], 8000)));
        replica.store.replace(pods.collect());
        replica.driver.tick(now);
    }
    let loads = |replica: &Replica| -> Vec<Arc<Load>> {
        replica.store.snapshot().endpoints().iter().map(|endpoint| Arc::clone(endpoint.load())).collect()
    };
    let (at_a, at_b) = (loads(&a), loads(&b));
    at_a.iter().for_each(|load| drop(load.book()));
    let _held = [&at_a[0], &at_a[count - 1]].map(|load| load.book());
    let noted = || at_b.iter().filter(|load| load.sent_elsewhere_ms().is_some()).count();
    now += INTERVAL;
    assert!(a.publish_to(&mut b, now));
    assert_eq!([0, 1, count - 1].map(|at| at_b[at].others()), [1, 0, 1]);
    assert_eq!(noted(), MOST_ENDPOINTS);
    now += TTL;
    assert!(a.publish_to(&mut b, now));
    assert_eq!(noted(), count);
}

#[tokio::test(start_paused = true)]
async fn others_may_send_requests_while_the_store_is_away() {
    let mut replica = Replica::new(1, Vec::new());
    let now = Instant::now();
    replica.driver.tick(now);
    assert_eq!(replica.load().sent_elsewhere_ms(), None);
    for (second, event) in [(1u64, Some(Event::Down)), (2, None), (3, None), (4, Some(Event::Up))] {
        replica.clock.set(Duration::from_secs(second));
        event.into_iter().for_each(|event| replica.driver.take(event, now));
        replica.driver.tick(now);
        assert_eq!(replica.load().sent_elsewhere_ms(), Some(second.min(3) * 1000 + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn unshared_counters_drop_the_load_of_others() {
    let (mut a, mut b) = (Replica::new(1, vec![counter("p", 0)]), Replica::new(2, vec![counter("p", 0)]));
    let mut now = Instant::now();
    let _share = Share::new(&a.load(), InFlightId::new(0).unwrap(), 100);
    b.driver.tick(now);
    a.publish_to(&mut b, now);
    assert_eq!(b.reported(0), (1, 100, 0));
    b.shares.send_replace(Vec::new());
    now += INTERVAL;
    assert!(b.publish_to(&mut a, now));
    assert_eq!(b.reported(0), (0, 0, 0));
    b.shares.send_replace(vec![counter("p", 0)]);
    now += INTERVAL;
    b.publish_to(&mut a, now);
    assert!(a.publish_to(&mut b, now), "it asks, and is answered at once");
    assert_eq!(b.reported(0), (1, 100, 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_published_while_the_store_is_away() {
    let (mut a, mut b) = (Replica::new(1, Vec::new()), Replica::new(2, Vec::new()));
    let mut now = Instant::now();
    a.driver.take(Event::Down, now);
    assert!(!a.publish_to(&mut b, now));
    let _booked = a.load().book();
    now += INTERVAL;
    a.driver.take(Event::Up, now);
    assert!(a.publish_to(&mut b, now));
    assert_eq!(b.load().others(), 1);
}
