//! A decision's heap allocations don't depend on the number of endpoints.

use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use stats_alloc::Region;
use usher::config::EndpointPickerConfig;
use usher::endpoints::{Candidates, EndpointSpec, Store};
use usher::registry::Pipeline;
use usher::request::{Headers, ParserKind, Parsers, RequestParser};
use usher::schedule::{Context, Record, SchedulerMetrics, Scratch, State};

use crate::alone::{ALLOCATOR, passed_alone};

fn candidates(count: u32) -> Candidates {
    let store = Arc::new(Store::default());
    let spec = |index: u32| {
        EndpointSpec::new(format!("pod-{index}"), (std::net::Ipv4Addr::from(0x0a00_0000 + index), 8000))
    };
    store.replace((0..count).map(spec).collect());
    let snapshot = store.snapshot();
    for (index, endpoint) in (0u32..).zip(snapshot.endpoints()) {
        endpoint.load().waiting.set(f64::from(index % 17), 1);
        endpoint.load().kv_usage.set(f64::from(index % 23) / 23.0, 1);
    }
    snapshot.all()
}

#[test]
fn a_decision_allocates_at_most_ten_times() {
    if passed_alone("decide_allocations::a_decision_allocates_at_most_ten_times") {
        return;
    }
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    let request =
        RequestParser::new(Headers::default(), &Parsers::new(&[ParserKind::PassThrough])).without_body();
    let cx = Context::new(&request, 10, Duration::from_secs(2));
    let mut rng = StdRng::seed_from_u64(1);
    for picks in [1, 3] {
        let text = format!(
            "plugins: [{{type: queue-scorer}}, {{type: kv-cache-utilization-scorer}}, {{type: load-aware-scorer}}, {{type: max-score-picker, parameters: {{maxNumOfEndpoints: {picks}}}}}]\n"
        );
        let config = EndpointPickerConfig::parse(&text).unwrap();
        let scheduler = Pipeline::build(Some(&config), false, &metrics, &State::default()).unwrap().scheduler;
        for count in [10, 1000] {
            let candidates = candidates(count);
            let mut scratch = Scratch::default();
            scheduler.decide(&cx, &candidates, &mut rng, &mut scratch, Record::No).unwrap();
            let region = Region::new(ALLOCATOR);
            let decision = scheduler.decide(&cx, &candidates, &mut rng, &mut scratch, Record::No).unwrap();
            let change = region.change();
            let allocations = change.allocations + change.reallocations;
            assert!(allocations <= 10, "{allocations} at {count} endpoints and {picks} picks");
            assert_eq!(decision.endpoints().len(), picks);
        }
    }
}
