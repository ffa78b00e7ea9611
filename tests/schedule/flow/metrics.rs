//! Metrics of requests that wait.

use std::time::Duration;

use tokio::time::advance;
use usher::flow::DemandOf;
use usher::request::Request;

use crate::flow::pool::{Pool, config, of, settle};
use crate::lines::Lines;

#[tokio::test(start_paused = true)]
async fn queue_metrics_are_exported_under_both_names() {
    let pool = Pool::new(&config(2, "maxRequests: 20\npriorityBands: [{priority: 5, maxBytes: 1000}]"), 1);
    let running = [pool.pass(of("a", 0)).await, pool.pass(of("a", 0)).await];
    let waiting = [pool.send(of("a", 0)), pool.send(of("b", 0)), pool.send(of("b", 5))];
    settle().await;
    let expected = [
        (
            r#"llm_d_epp_flow_control_queue_size{fairness_id="a",inference_pool="pool",model_name="m",priority="0",target_model_name="m"}"#,
            1.0,
        ),
        (
            r#"inference_extension_flow_control_queue_size{fairness_id="b",inference_pool="pool",model_name="m",priority="5",target_model_name="m"}"#,
            1.0,
        ),
        (
            r#"llm_d_epp_flow_control_queue_bytes{fairness_id="a",inference_pool="pool",model_name="m",priority="0",target_model_name="m"}"#,
            30.0,
        ),
        (
            r#"inference_extension_flow_control_queue_bytes{fairness_id="a",inference_pool="pool",model_name="m",priority="0",target_model_name="m"}"#,
            30.0,
        ),
        (r#"llm_d_epp_flow_control_pool_saturation{inference_pool="pool",stage="effective"}"#, 1.0),
        (r#"llm_d_epp_flow_control_pool_saturation{inference_pool="pool",stage="decode"}"#, 1.0),
        (r#"inference_extension_flow_control_pool_saturation{inference_pool="pool",stage="effective"}"#, 1.0),
        (
            r#"llm_d_epp_flow_control_capacity_utilization_requests{inference_pool="pool",priority="0"}"#,
            0.0004,
        ),
        (r#"llm_d_epp_flow_control_capacity_utilization_bytes{inference_pool="pool",priority="5"}"#, 0.03),
        (r#"llm_d_epp_flow_control_global_capacity_utilization_requests{inference_pool="pool"}"#, 0.15),
        (r#"usher_demand_requests{model_name="m",priority="0",target_model_name="m"}"#, 2.0),
        (r#"usher_demand_bytes{model_name="m",priority="5",target_model_name="m"}"#, 30.0),
    ];
    for (series, value) in expected {
        assert_eq!(pool.metric(series), Some(value), "{series}");
    }
    let page = pool.page();
    assert!(
        !page.contains("stage=\"prefill\"") && !page.contains("global_capacity_utilization_bytes"),
        "{page}"
    );
    let of = |priority, requests, bytes| DemandOf {
        priority,
        model: "m".to_owned(),
        target_model: "m".to_owned(),
        requests,
        bytes,
    };
    assert_eq!(pool.demand().waiting, [of(5, 1, 30), of(0, 2, 60)]);

    advance(Duration::from_millis(300)).await;
    drop((running, waiting));
    settle().await;
    assert!(pool.demand().is_empty());
    let size = r#"llm_d_epp_flow_control_queue_size{fairness_id="a",inference_pool="pool",model_name="m",priority="0",target_model_name="m"}"#;
    assert_eq!(pool.metric(size), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn queue_durations_are_exported_by_outcome() {
    let pool = Pool::new(&config(1, ""), 1);
    let running = pool.pass(of("a", 0)).await;
    let (waits, gone) = (pool.send(of("a", 0)), pool.send(of("a", 0)));
    settle().await;
    advance(Duration::from_millis(300)).await;
    drop(gone);
    settle().await;
    drop(running);
    drop(waits.now().await.unwrap());
    let waited = |outcome: &str, rest: &str| {
        let labels = format!(
            r#"fairness_id="a",inference_pool="pool",model_name="m",outcome="{outcome}",priority="0",target_model_name="m""#
        );
        rest.replace("{}", &labels)
    };
    for (outcome, rest, value) in [
        ("Dispatched", "llm_d_epp_flow_control_request_queue_duration_seconds_count{{}}", 2.0),
        ("Dispatched", "inference_extension_flow_control_request_queue_duration_seconds_count{{}}", 2.0),
        ("Dispatched", "llm_d_epp_flow_control_request_queue_duration_seconds_bucket{{},le=\"0.25\"}", 1.0),
        ("Dispatched", "llm_d_epp_flow_control_request_queue_duration_seconds_bucket{{},le=\"0.5\"}", 2.0),
        ("EvictedContextCancelled", "llm_d_epp_flow_control_request_queue_duration_seconds_count{{}}", 1.0),
    ] {
        let series = waited(outcome, rest);
        assert_eq!(pool.metric(&series), Some(value), "{series}");
    }
    for series in [
        r#"llm_d_epp_flow_control_request_enqueue_duration_seconds_count{fairness_id="a",outcome="Dispatched",priority="0"}"#,
        r#"inference_extension_flow_control_request_enqueue_duration_seconds_count{fairness_id="a",outcome="Dispatched",priority="0"}"#,
    ] {
        assert_eq!(pool.metric(series), Some(2.0), "{series}");
    }
    assert!(
        pool.metric("inference_extension_flow_control_dispatch_cycle_duration_seconds_count").unwrap() >= 2.0
    );
}

#[tokio::test(start_paused = true)]
async fn a_flow_for_every_request_does_not_fill_the_page() {
    let (log, _guard) = Lines::start();
    let pool = Pool::new(&config(1, ""), 1);
    let running = pool.pass(of("first", 0)).await;
    let waits = pool.send(of("second", 0));
    settle().await;
    for number in 0..3000 {
        let sent = pool.send(of(&format!("flow-{number}"), 0));
        tokio::task::yield_now().await;
        drop(sent);
    }
    let page = pool.page();
    let lines = page.lines().filter(|line| line.starts_with("llm_d_epp_flow_control_queue_size{")).count();
    assert!(lines <= 1002, "{lines}");
    assert!(page.contains("fairness_id=\"other\""));
    // Logged once, without a name, and every request is counted.
    assert_eq!(log.count(&["WARN", "count as 'other'", "label_kind=\"flow control\""]), 1, "{}", log.text());
    assert!(!log.text().contains("flow-"), "{}", log.text());
    settle().await;
    assert_eq!(pool.outcome("EvictedContextCancelled", 0), 3000.0);
    advance(Duration::from_secs(59)).await;
    assert!(!waits.is_answered().await);
    advance(Duration::from_secs(301)).await;
    drop(waits);
    drop(running);
    settle().await;
    sweep_idle(&pool).await;
    let page = pool.page();
    let left = page.lines().find(|line| line.contains("fairness_id=\"flow-7\""));
    assert_eq!(left, None, "series that nobody uses go");
    drop(pool.pass(of("new", 0)).await);
    assert!(pool.page().contains("fairness_id=\"new\""), "and make room for others");
}

/// A request for a model.
fn asking_for(model: &str, flow: &str) -> Request {
    let mut request = of(flow, 0);
    (request.model, request.target_model) = (model.to_owned(), model.to_owned());
    request
}

/// Looks for idle series now, and again when those that were found idle have been so for five minutes.
async fn sweep_idle(pool: &Pool) {
    for seconds in [11, 301] {
        advance(Duration::from_secs(seconds)).await;
        pool.dispatcher.sweep();
    }
}

/// Lines of a family on the page.
fn series_of(pool: &Pool, family: &str) -> usize {
    let starts = |line: &&str| line.strip_prefix(family).is_some_and(|rest| rest.starts_with('{'));
    pool.page().lines().filter(starts).count()
}

#[tokio::test(start_paused = true)]
async fn idle_models_free_their_label() {
    let pool = Pool::new(&config(100_000, "noEndpointRequestTTL: 0s"), 1);
    for number in 0..1200 {
        drop(pool.pass(asking_for(&format!("model-{number}"), "a")).await);
    }
    assert!((1000..=1002).contains(&series_of(&pool, "usher_demand_requests")));
    pool.scale(0);
    let waits = pool.send(asking_for("new", "a"));
    settle().await;
    assert_eq!(pool.demand().waiting[0].model, "other");
    sweep_idle(&pool).await;
    drop(waits);
    let waits = pool.send(asking_for("new", "a"));
    settle().await;
    assert_eq!((pool.demand().waiting[0].model.as_str(), pool.demand().requests()), ("new", 1));
    assert!(series_of(&pool, "llm_d_epp_flow_control_queue_size") <= 2);
    // What waits is shown however long it does, and what few have waited for stays at 0.
    let series = "usher_demand_requests{model_name=\"new\",priority=\"0\",target_model_name=\"new\"}";
    let later = || async {
        advance(Duration::from_secs(3000)).await;
        settle().await;
        pool.dispatcher.sweep();
    };
    later().await;
    assert_eq!((pool.metric(series), pool.demand().requests()), (Some(1.0), 1));
    drop(waits);
    settle().await;
    later().await;
    assert_eq!((pool.metric(series), pool.demand().requests()), (Some(0.0), 0));
}

#[tokio::test(start_paused = true)]
async fn demand_is_summed_over_the_flows_of_a_model() {
    let pool = Pool::new(&config(100_000, "noEndpointRequestTTL: 0s"), 0);
    // Its series is that which others share later on.
    let other = pool.send(asking_for("other", "other"));
    settle().await;
    assert_eq!(pool.demand().waiting[0].model, "other");
    drop(other);
    let waits: Vec<_> =
        (0..1500).map(|number| pool.send(asking_for("m", &format!("flow-{number}")))).collect();
    settle().await;
    let series = "usher_demand_requests{model_name=\"m\",priority=\"0\",target_model_name=\"m\"}";
    assert_eq!(pool.metric(series), Some(1500.0));
    let size = "llm_d_epp_flow_control_queue_size";
    assert!((1000..=1001).contains(&series_of(&pool, size)), "{}", series_of(&pool, size));
    let waiting = pool.demand().waiting;
    assert_eq!((waiting.len(), waiting[0].model.as_str(), waiting[0].requests), (1, "m", 1500));
    drop(waits);
    settle().await;
    assert_eq!((pool.metric(series), pool.demand().requests()), (Some(0.0), 0));
}

#[tokio::test(start_paused = true)]
async fn model_counted_as_other_gets_its_own_demand_later() {
    let (log, _guard) = Lines::start();
    let pool = Pool::new(&config(100_000, "noEndpointRequestTTL: 0s"), 1);
    let ask = |number: usize, flow: &str| asking_for(&format!("model-{number}"), flow);
    for number in 0..999 {
        drop(pool.pass(ask(number, "a")).await);
    }
    // Another priority has a pair of its own for each model.
    let urgent = |number| {
        let mut request = ask(number, "a");
        request.priority = 1;
        request
    };
    drop(pool.pass(urgent(0)).await);
    pool.scale(0);
    let waits = pool.send(urgent(1));
    settle().await;
    let models = || pool.demand().waiting.into_iter().map(|of| of.model).collect::<Vec<_>>();
    assert_eq!(models(), ["other"]);
    assert_eq!(
        log.count(&["WARN", "count as 'other'", "label_kind=\"demand by model\""]),
        1,
        "{}",
        log.text()
    );
    // It goes on waiting while the others go: its series stays, and so does its gauge.
    sweep_idle(&pool).await;
    let later = pool.send(urgent(1));
    settle().await;
    assert_eq!(models(), ["model-1", "other"]);
    drop((waits, later));
    settle().await;
    assert!(pool.demand().is_empty());
}

#[tokio::test(start_paused = true)]
async fn series_made_while_full_counts_at_its_model_later() {
    let pool = Pool::new(&config(100_000, "noEndpointRequestTTL: 0s"), 1);
    for number in 0..1000 {
        drop(pool.pass(asking_for(&format!("model-{number}"), "a")).await);
    }
    // Requests for models of the table that share a series hold on to their demand, while the
    // series of those that went at once go.
    pool.scale(0);
    let wait = |number: usize| pool.send(asking_for(&format!("model-{number}"), "b"));
    let waits: Vec<_> = (0..1000).map(wait).collect();
    settle().await;
    sweep_idle(&pool).await;
    assert!(series_of(&pool, "llm_d_epp_flow_control_queue_size") <= 2);
    let models = || pool.demand().waiting.into_iter().map(|of| of.model).collect::<Vec<_>>();
    let first = pool.send(asking_for("new", "c"));
    settle().await;
    assert!(pool.page().contains("fairness_id=\"c\""), "it has a series of its own");
    assert!(models().contains(&"other".to_owned()) && !models().contains(&"new".to_owned()));
    drop(waits);
    settle().await;
    sweep_idle(&pool).await;
    let second = pool.send(asking_for("new", "c"));
    settle().await;
    assert_eq!(models(), ["new", "other"]);
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn flows_of_unlabelled_models_are_evicted() {
    let pool = Pool::new(&config(100_000, ""), 1);
    let long = "m".repeat(300);
    for number in 0..1200 {
        drop(pool.pass(asking_for(&long, &format!("flow-{number}"))).await);
    }
    let size = "llm_d_epp_flow_control_queue_size";
    assert!((1000..=1001).contains(&series_of(&pool, size)));
    sweep_idle(&pool).await;
    drop(pool.pass(of("new", 0)).await);
    assert!(pool.page().contains("fairness_id=\"new\""));
    assert!(series_of(&pool, size) <= 2, "{}", series_of(&pool, size));
}

#[tokio::test]
async fn utilization_detector_counts_stale_endpoints() {
    let config = "
featureGates: [flowControl]
plugins: [{type: random-picker}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
";
    let pool = Pool::without_task(config, 3);
    let waits = pool.send(of("a", 0));
    settle().await;
    pool.load(1).waiting.set(1.0, pool.clock.now_ms());
    let series = "llm_d_epp_flow_control_stale_endpoints{detector=\"utilization-detector\"}";
    assert_eq!(pool.metric(series), Some(2.0));
    let saturation = "llm_d_epp_flow_control_pool_saturation{inference_pool=\"pool\",stage=\"effective\"}";
    assert!((pool.metric(saturation).unwrap() - (1.0 + 0.2 + 1.0) / 3.0).abs() < 1e-9);
    drop(waits);
}
