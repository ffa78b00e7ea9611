//! Cost of waiting, without the wire: pairs of enqueue and dispatch over 5,000 flows in 8 bands
//! under each fairness policy, 10,000 clients that go away at once, and the overhead of flow
//! control for a request that needn't wait.
//!
//! `crowd` compares the policies when all requests come before the first leaves, so that
//! every band is full and every band is emptied. `standing` compares them when 10,000 wait
//! all the time and one comes for every one that leaves: what a busy picker does.
//! `cancelled` compares the orders in which clients may go away: the queue has to find
//! each wherever it stands. `cancelled/at-the-gate` is all of it: 10,000 futures that wait are
//! dropped. `handed-in` compares two ways to share the queue among threads: a
//! lock around it, which is ours, and a task of its own that is asked over a channel.
//! `dispatched` compares a whole decision over 10 endpoints with flow control and without,
//! when there is room.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark that cannot go on has nothing to measure")]

use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures_util::FutureExt;
use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use tokio::sync::{mpsc, oneshot};
use usher::config::EndpointPickerConfig;
use usher::endpoints::{CachedLocator, Clock, EndpointSpec, Store, StoreLocator, SubsetHint};
use usher::flow::queue::{Action, Arrival, Capacity, Queue, Ticket};
use usher::flow::{Attempts, Dispatcher, Gate, GateMetrics, Policy};
use usher::registry::Pipeline;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::flow_control::{BandRules, Fairness, FlowControlRules, ProgramAwareParams};
use usher::schedule::{Level, Record, SchedulerMetrics, State};

/// Same allocator as `usher serve`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const FLOWS: usize = 5000;
const BANDS: usize = 8;
/// Requests of each flow in a crowd.
const EACH: usize = 8;
const CANCELLED: usize = 10_000;

fn policies() -> [(&'static str, Fairness); 3] {
    [
        ("global-strict", Fairness::GlobalStrict),
        ("round-robin", Fairness::RoundRobin),
        ("program-aware", Fairness::ProgramAware(ProgramAwareParams::default())),
    ]
}

fn queue(fairness: &Fairness) -> Queue {
    let band = BandRules { max_requests: u64::MAX, fairness: fairness.clone(), ..BandRules::default() };
    let rules = FlowControlRules {
        bands: (0..BANDS as i32).map(|priority| (priority, band.clone())).collect(),
        ..FlowControlRules::default()
    };
    let mut queue = Queue::new(&rules, 0);
    queue.set_endpoints(1, 1);
    queue
}

/// A pool that has room for one request more.
fn room_for_one() -> Capacity {
    Capacity::new([Level { saturation: 0.0, per_request: 1.0, per_byte: 0.0 }])
}

struct Load {
    names: Vec<String>,
    now: u64,
}

impl Load {
    fn new() -> Self {
        Self { names: (0..FLOWS).map(|flow| format!("tenant-{flow:05}-of-a-platform")).collect(), now: 1 }
    }

    fn enqueue(&mut self, queue: &mut Queue, flow: usize) -> Ticket {
        self.now += 1000;
        let arrival = Arrival {
            flow: &self.names[flow],
            priority: (flow % BANDS) as i32,
            bytes: 1000,
            beside: 0,
            received: self.now,
            since: self.now,
            ttl: Some(60_000_000_000),
            due: None,
        };
        queue.enqueue(self.now, &arrival).unwrap()
    }

    /// Lets one go and ends it; returns which.
    fn dispatch(&mut self, queue: &mut Queue, capacity: &Capacity, actions: &mut Vec<Action>) -> Ticket {
        self.now += 1000;
        queue.dispatch(self.now, capacity, actions);
        let Some(Action::Dispatch { ticket, .. }) = actions.pop() else { panic!("nobody goes") };
        queue.booked(self.now, ticket);
        queue.end(self.now, ticket, 100.0, actions);
        ticket
    }
}

fn crowd(c: &mut Criterion) {
    let mut group = c.benchmark_group("flow/crowd");
    group.throughput(Throughput::Elements((FLOWS * EACH) as u64)).sample_size(10);
    for (name, fairness) in policies() {
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_custom(|rounds| {
                let (mut load, capacity, mut actions) = (Load::new(), room_for_one(), Vec::new());
                let mut taken = Duration::ZERO;
                for _ in 0..rounds {
                    let mut queue = queue(&fairness);
                    let start = Instant::now();
                    for request in 0..FLOWS * EACH {
                        load.enqueue(&mut queue, request % FLOWS);
                    }
                    for _ in 0..FLOWS * EACH {
                        load.dispatch(&mut queue, &capacity, &mut actions);
                    }
                    taken += start.elapsed();
                    assert_eq!(queue.waiting().requests, 0);
                }
                taken
            });
        });
    }
    group.finish();
}

fn standing(c: &mut Criterion) {
    let mut group = c.benchmark_group("flow/standing");
    group.throughput(Throughput::Elements(1));
    for (name, fairness) in policies() {
        let (mut load, capacity, mut actions) = (Load::new(), room_for_one(), Vec::new());
        let mut queue = queue(&fairness);
        // Whose ticket it is, by the ticket's place.
        let mut flows = Vec::new();
        let note = |ticket: Ticket, flow: usize, flows: &mut Vec<usize>| {
            if flows.len() <= ticket.index() {
                flows.resize(ticket.index() + 1, 0);
            }
            flows[ticket.index()] = flow;
        };
        for request in 0..2 * FLOWS {
            let ticket = load.enqueue(&mut queue, request % FLOWS);
            note(ticket, request % FLOWS, &mut flows);
        }
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                let ticket = load.dispatch(&mut queue, &capacity, &mut actions);
                let flow = flows[ticket.index()];
                let ticket = load.enqueue(&mut queue, flow);
                note(ticket, flow, &mut flows);
            });
        });
    }
    group.finish();
}

fn cancelled(c: &mut Criterion) {
    let mut group = c.benchmark_group("flow/cancelled");
    group.throughput(Throughput::Elements(CANCELLED as u64)).sample_size(20);
    for (name, order) in [("oldest-first", 0), ("newest-first", 1), ("at-random", 2)] {
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_custom(|rounds| {
                let (mut load, mut actions) = (Load::new(), Vec::new());
                let mut taken = Duration::ZERO;
                for _ in 0..rounds {
                    let mut queue = queue(&Fairness::RoundRobin);
                    let mut tickets: Vec<Ticket> =
                        (0..CANCELLED).map(|request| load.enqueue(&mut queue, request % FLOWS)).collect();
                    match order {
                        0 => {}
                        1 => tickets.reverse(),
                        _ => tickets.shuffle(&mut StdRng::seed_from_u64(7)),
                    }
                    let start = Instant::now();
                    for ticket in tickets {
                        queue.end(load.now, ticket, 0.0, &mut actions);
                    }
                    taken += start.elapsed();
                    assert_eq!(queue.waiting().requests, 0);
                }
                taken
            });
        });
    }
    for (order, at_random) in [("oldest-first", false), ("at-random", true)] {
        group.bench_function(BenchmarkId::new("at-the-gate", order), |b| {
            b.iter_custom(|rounds| (0..rounds).map(|_| leave_the_gate(at_random)).sum());
        });
    }
    group.finish();
}

/// Time until clients that wait before an empty pool are gone: their streams end, and with
/// them the futures that wait.
fn leave_the_gate(at_random: bool) -> Duration {
    let dispatcher = dispatcher("flowControl", 0);
    let parsers = Parsers::new(&[ParserKind::PassThrough]);
    let requests: Vec<Arc<Request>> = (0..FLOWS)
        .map(|flow| {
            let name = format!("tenant-{flow:05}-of-a-platform");
            let headers: Headers = [("x-llm-d-inference-fairness-id", name.as_str())].into_iter().collect();
            let mut request = RequestParser::new(headers, &parsers).without_body();
            (request.priority, request.skips_queue) = ((flow % BANDS) as i32, false);
            Arc::new(request)
        })
        .collect();
    let missing = SubsetHint::Missing;
    let mut context = Context::from_waker(Waker::noop());
    let mut waiting: Vec<_> = (0..CANCELLED)
        .map(|request| Box::pin(dispatcher.enter(&requests[request % FLOWS], &missing).decided()))
        .collect();
    waiting.iter_mut().for_each(|waits| assert!(waits.poll_unpin(&mut context).is_pending()));
    assert_eq!(dispatcher.demand().requests(), CANCELLED as u64);
    if at_random {
        waiting.shuffle(&mut StdRng::seed_from_u64(7));
    }
    let start = Instant::now();
    drop(waiting);
    let taken = start.elapsed();
    assert_eq!(dispatcher.demand().requests(), 0);
    taken
}

/// A request comes, may go at once and ends: once through a lock, once through a task.
fn handed_in(c: &mut Criterion) {
    let mut group = c.benchmark_group("flow/handed-in");
    group.throughput(Throughput::Elements(1)).sample_size(20);
    let once = |queue: &mut Queue, load: &mut Load, actions: &mut Vec<Action>| {
        load.enqueue(queue, 0);
        load.dispatch(queue, &room_for_one(), actions);
    };
    group.bench_function("lock", |b| {
        let locked = Mutex::new((queue(&Fairness::RoundRobin), Load::new(), Vec::new()));
        b.iter(|| {
            let (queue, load, actions) = &mut *locked.lock().unwrap();
            once(queue, load, actions);
        });
    });
    group.bench_function("task", |b| {
        let (ask, mut asked) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut queue, mut load, mut actions) = (queue(&Fairness::RoundRobin), Load::new(), Vec::new());
            runtime().block_on(async {
                while let Some(reply) = asked.recv().await {
                    once(&mut queue, &mut load, &mut actions);
                    reply.send(()).unwrap();
                }
            });
        });
        let own = runtime();
        b.iter(|| {
            own.block_on(async {
                let (reply, replied) = oneshot::channel();
                ask.send(reply).unwrap();
                replied.await.unwrap();
            });
        });
        drop(ask);
        thread.join().unwrap();
    });
    group.finish();
}

const CONFIG: &str = "
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: random-picker
- {type: concurrency-detector, parameters: {maxConcurrency: 1000}}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
";

fn dispatcher(gates: &str, endpoints: u8) -> Arc<Dispatcher> {
    let (registry, store, clock) = (Registry::new(), Arc::new(Store::default()), Clock::start());
    let spec = |i: u8| EndpointSpec::new(format!("pod-{i}"), ([10, 0, 0, i], 8000));
    store.replace((1..=endpoints).map(spec).collect());
    let config = EndpointPickerConfig::parse(&format!("featureGates: [{gates}]\n{CONFIG}")).unwrap();
    let metrics = SchedulerMetrics::register(&registry).unwrap();
    let pipeline = Pipeline::build(Some(&config), false, &metrics, &State::default()).unwrap();
    let (scheduler, stages, hour) = (pipeline.scheduler, pipeline.stages, Duration::from_secs(3600));
    let policy = Policy { scheduler, stages, max_age: hour, record: Record::No };
    let locator = CachedLocator::new(Arc::new(StoreLocator::new(store, false)), clock.clone(), hour, 16);
    let attempts = Arc::new(Attempts::register(&registry).unwrap());
    let dispatcher = Dispatcher::new(locator, policy, clock.clone(), attempts);
    Arc::new(match pipeline.flow_control {
        None => dispatcher,
        Some(spec) => {
            let metrics = GateMetrics::register(&registry, "pool").unwrap();
            dispatcher.with_gate(Gate::new(&spec, clock, hour, metrics))
        }
    })
}

fn dispatched(c: &mut Criterion) {
    let mut group = c.benchmark_group("flow/dispatched");
    group.throughput(Throughput::Elements(1));
    let parsers = Parsers::new(&[ParserKind::PassThrough]);
    let request = RequestParser::new(Headers::default(), &parsers).without_body();
    for (name, gates) in [("without", ""), ("with", "flowControl")] {
        let dispatcher = dispatcher(gates, 10);
        let missing = SubsetHint::Missing;
        drop(
            dispatcher.enter(&Arc::new(request.clone()), &missing).decided().now_or_never().unwrap().unwrap(),
        );
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| dispatcher.decide_now(&request, &missing, &mut rand::rng()).unwrap().unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, crowd, standing, cancelled, handed_in, dispatched);
criterion_main!(benches);
