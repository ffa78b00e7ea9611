//! A file that changes under a pool with requests.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use prometheus::Registry;
use tempfile::TempDir;

use super::*;
use crate::cli::{Command, parse};
use crate::endpoints::{EndpointSpec, Store, SubsetHint};
use crate::flow::{Dispatcher, Routed};
use crate::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use crate::schedule::{PrefixCaches, State};
use crate::server::pool::{self, Pool};
use crate::server::setup::Setup;

const PODS: u8 = 4;

/// Learns prefixes and prefers endpoints that have them.
const PREFIX: &str = "
plugins:
- {type: prefix-cache-scorer}
- {type: queue-scorer}
- {type: concurrency-detector, parameters: {maxConcurrency: 500}}
featureGates: [flowControl]
flowControl: {saturationDetector: {pluginRef: concurrency-detector}, priorityBands: [{priority: 3}]}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-scorer, weight: 3}, {pluginRef: queue-scorer, weight: 0.1}]
";

/// Reads what is in flight, and lets fewer requests wait.
const BOOKING: &str = "
plugins:
- {type: prefix-cache-scorer}
- {type: active-request-scorer}
- {name: two, type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
- {name: detector, type: concurrency-detector, parameters: {maxConcurrency: 400}}
featureGates: [flowControl]
flowControl: {saturationDetector: {pluginRef: detector}, maxRequests: 4000, defaultRequestTTL: 30s}
schedulingProfiles:
- name: busy
  plugins: [{pluginRef: active-request-scorer}, {pluginRef: prefix-cache-scorer}, {pluginRef: two}]
";

struct Fixture {
    folder: TempDir,
    reloader: Reloader,
    dispatcher: Arc<Dispatcher>,
    store: Arc<Store>,
    state: Arc<State>,
    status: Arc<Status>,
    registry: Registry,
}

impl Fixture {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("epp.yaml"), text).unwrap();
        Self::at(folder, "epp.yaml")
    }

    fn at(folder: TempDir, name: &str) -> Self {
        let file = format!("--config-file={}", folder.path().join(name).display());
        let arguments = ["usher", "serve", &file, "--allow-experimental-plugins"].map(Into::into);
        let Command::Serve(flags) = parse(arguments).unwrap() else { panic!("not serve") };
        let setup = Setup::new(flags.settings(Default::default()).unwrap()).unwrap();
        let Setup { settings, types, text, pipeline, registry, scheduler_metrics, state, store, .. } = setup;
        let active = Active::new(&pipeline, &text);
        let status = Arc::new(Status::register(&settings.config, active.hash(), &registry).unwrap());
        let parts = pool::Parts {
            settings: &settings,
            pipeline,
            scheduler_metrics: &scheduler_metrics,
            state: Arc::clone(&state),
            store: Arc::clone(&store),
            locator: None,
            outliers: None,
            tracer: None,
            recorder: None,
        };
        let pool = Pool::new(parts, &registry).unwrap();
        let spec = |i: u8| EndpointSpec::new(format!("pod-{i}"), ([10, 0, 0, i], 8000));
        store.replace((1..=PODS).map(spec).collect());
        let (dispatcher, swap) = (Arc::clone(&pool.dispatcher), pool.swap());
        let parts = Parts { types, settings, metrics: scheduler_metrics, state: Arc::clone(&state) };
        let events = Events::about(None, None);
        let reloader = Reloader::new(parts, swap, (active, text), Arc::clone(&status), events).unwrap();
        Self { folder, reloader, dispatcher, store, state, status, registry }
    }

    /// Returns `true` if there is state of the producer `index-{number}`.
    fn has_index(&self, number: usize) -> bool {
        let all = self.state.all::<PrefixCaches>();
        all.iter().any(|(name, _)| name.starts_with(&format!("index-{number} ")))
    }

    fn write(&self, text: &str) {
        std::fs::write(self.folder.path().join("epp.yaml"), text).unwrap();
    }

    /// Looks until a change has settled.
    fn look(&mut self) {
        self.reloader.look();
        self.reloader.look();
    }

    fn page(&self) -> serde_json::Value {
        serde_json::from_str(&self.status.json()).unwrap()
    }

    fn generation(&self) -> i64 {
        self.page()["generation"].as_i64().unwrap()
    }

    fn error(&self) -> String {
        self.page()["last_error"]["message"].as_str().unwrap_or_default().to_owned()
    }

    fn in_flight(&self) -> i64 {
        self.store.snapshot().endpoints().iter().map(|endpoint| endpoint.load().in_flight()).sum()
    }
}

fn request(prompt: &str) -> Request {
    let headers: Headers = [(":path", "/v1/completions")].into_iter().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    parser.push(format!(r#"{{"model":"m","prompt":"{prompt}"}}"#).into());
    parser.finish().unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn send(dispatcher: &Arc<Dispatcher>, prompt: &str) -> Routed {
    let request = Arc::new(request(prompt));
    block_on(dispatcher.enter(&request, &SubsetHint::Missing).decided()).expect("no request fails")
}

#[test]
fn invalid_files_leave_the_old_configuration_running() {
    let mut fixture = Fixture::new(PREFIX);
    let hash = fixture.page()["sha256"].clone();
    let truncated = &PREFIX[..PREFIX.find("weight: 3}").unwrap()];
    let table = [
        (truncated.to_owned(), "epp.yaml:"),
        ("plugins: [\n".to_owned(), "epp.yaml:"),
        (String::new(), "the file is empty"),
        (" \n\n".to_owned(), "the file is empty"),
        (PREFIX.replace("queue-scorer", "queue-scorre"), "is not registered (did you mean `queue-scorer`?)"),
        (PREFIX.replace("featureGates: [flowControl]", ""), "the feature gate flowControl can't change"),
        ("x".repeat((1 << 20) + 1), "epp.yaml"),
    ];
    for (number, (text, says)) in (1..).zip(&table) {
        fixture.write(text);
        fixture.look();
        let page = fixture.page();
        assert!(fixture.error().contains(says), "{says}: {page}");
        assert_eq!((&page["sha256"], &page["current"]), (&hash, &false.into()), "{says}");
        assert_eq!(page["failures"], number, "{says}");
        // The same is logged once.
        fixture.look();
        assert_eq!(fixture.page()["failures"], number, "{says}");
    }
    std::fs::remove_file(fixture.folder.path().join("epp.yaml")).unwrap();
    fixture.look();
    assert!(fixture.error().contains("can't be read"), "{}", fixture.error());
    std::fs::create_dir(fixture.folder.path().join("epp.yaml")).unwrap();
    fixture.look();
    assert!(fixture.error().contains("no regular file"), "{}", fixture.error());
    std::fs::remove_dir(fixture.folder.path().join("epp.yaml")).unwrap();
    // The text that runs is no reload.
    fixture.write(PREFIX);
    fixture.look();
    assert_eq!((fixture.generation(), &fixture.page()["current"]), (1, &true.into()));
    send(&fixture.dispatcher, "hi");
    fixture.write(BOOKING);
    fixture.reloader.look();
    assert_eq!(fixture.generation(), 1, "it may be half written");
    fixture.reloader.look();
    assert_eq!((fixture.generation(), fixture.error().as_str()), (2, ""));
}

#[test]
fn swapped_link_is_a_change_only_with_another_text() {
    let folder = tempfile::tempdir().unwrap();
    // As Kubernetes mounts a ConfigMap.
    let place = folder.path().to_owned();
    let version = |name: &str, text: &str| {
        std::fs::create_dir(place.join(name)).unwrap();
        std::fs::write(place.join(name).join("epp.yaml"), text).unwrap();
        std::os::unix::fs::symlink(name, place.join("..data_tmp")).unwrap();
        std::fs::rename(place.join("..data_tmp"), place.join("..data")).unwrap();
    };
    version("..1", PREFIX);
    std::os::unix::fs::symlink("..data/epp.yaml", place.join("epp.yaml")).unwrap();
    let mut fixture = Fixture::at(folder, "epp.yaml");
    version("..2", PREFIX);
    fixture.look();
    assert_eq!(fixture.generation(), 1);
    version("..3", BOOKING);
    fixture.look();
    assert_eq!(fixture.generation(), 2);
    let changes = fixture.page()["last_changes"].to_string();
    for change in ["profile 'busy' added", "flowControl.maxRequests none → 4000"] {
        assert!(changes.contains(change), "{changes}");
    }
}

#[test]
fn a_thousand_refused_reloads_leak_no_state() {
    let mut fixture = Fixture::new(PREFIX);
    let series = |fixture: &Fixture| crate::metrics::render(&fixture.registry).lines().count();
    let before = series(&fixture);
    for number in 0..1000 {
        let index = format!("- {{name: index-{number}, type: approx-prefix-cache-producer}}\n");
        let text = PREFIX.replace("plugins:\n- {type: p", &format!("plugins:\n{index}- {{type: p"));
        // Built, and then refused.
        fixture.write(&text.replace("featureGates: [flowControl]", "featureGates: []"));
        fixture.look();
        assert!(!fixture.has_index(number));
    }
    assert_eq!((fixture.page()["failures"].as_i64(), fixture.generation()), (Some(1000), 1));
    assert_eq!(series(&fixture), before);
}

#[test]
fn state_and_series_of_removed_plugins_are_dropped() {
    let mut fixture = Fixture::new(PREFIX);
    for number in 0..20 {
        let text = PREFIX.replace(
            "- {type: prefix-cache-scorer}",
            &format!("- {{name: index-{number}, type: approx-prefix-cache-producer}}\n- {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: index-{number}}}}}"),
        );
        fixture.write(&text);
        fixture.look();
        assert_eq!(fixture.error(), "");
    }
    fixture.look();
    assert!(!fixture.has_index(0) && !fixture.has_index(18) && fixture.has_index(19));
    let text = crate::metrics::render(&fixture.registry);
    let durations = |name: &str| {
        text.lines().any(|line| line.contains("plugin_duration_seconds_count") && line.contains(name))
    };
    assert!(durations("\"index-19\"") && !durations("\"index-18\""), "{text}");
    let sizes =
        |name: &str| text.lines().any(|line| line.contains("prefix_indexer_size{") && line.contains(name));
    assert!(sizes("\"index-19\"") && !sizes("\"index-18\""), "{text}");
}

#[test]
fn a_file_without_room_is_tried_again() {
    let named = |number: usize| {
        let producer = format!("{{name: load-{number}, type: inflight-load-producer}}");
        BOOKING.replace(
            "- {type: active-request-scorer}",
            &format!("- {producer}\n- {{type: active-request-scorer, parameters: {{inFlightLoadProducerName: load-{number}}}}}"),
        )
    };
    let mut fixture = Fixture::new(&named(0));
    let mut held = vec![send(&fixture.dispatcher, "a")];
    let mut number = 0;
    while fixture.error().is_empty() {
        number += 1;
        assert!(number < 20, "there is room for any number of them");
        fixture.write(&named(number));
        fixture.look();
        held.push(send(&fixture.dispatcher, "a"));
    }
    let generation = fixture.generation();
    fixture.look();
    assert_eq!(fixture.generation(), generation);
    drop(held);
    fixture.look();
    fixture.look();
    assert_eq!((fixture.error(), fixture.generation()), (String::new(), generation + 1));
}

#[test]
fn a_broken_tokenizer_is_refused_once() {
    let mut fixture = Fixture::new(PREFIX);
    let tokenizer = fixture.folder.path().join("tokenizer.json");
    std::fs::write(&tokenizer, "{}").unwrap();
    let producer = format!(
        "plugins:\n- {{type: token-producer, parameters: {{local: {{path: {}}}}}}}\n",
        tokenizer.display()
    );
    fixture.write(&PREFIX.replace("plugins:\n- {type: p", &format!("{producer}- {{type: p")));
    fixture.look();
    assert!(fixture.error().contains("is no tokenizer"), "{}", fixture.error());
    assert_eq!(fixture.reloader.waiting, None, "it is not read again each second");
    fixture.look();
    assert_eq!((&fixture.page()["failures"], fixture.generation()), (&1.into(), 1));
}

#[test]
fn requests_under_way_and_learned_prefixes_outlive_reloads() {
    const THREADS: u64 = 3;
    const RELOADS: i64 = 25;
    let mut fixture = Fixture::new(PREFIX);
    let prompt = "a long prompt that somebody has sent before, ".repeat(200);
    let first = send(&fixture.dispatcher, &prompt).decision().primary_endpoint().id().clone();
    fixture.state.settle();
    let (done, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    let dispatcher = Arc::clone(&fixture.dispatcher);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..THREADS {
            let (dispatcher, done, requests) = (&dispatcher, &done, &requests);
            threads.push(scope.spawn(move || {
                let mut held = Vec::new();
                let mut number = 0_u64;
                while !done.load(Relaxed) {
                    number += 1;
                    held.push(send(dispatcher, &format!("{thread} {number}")));
                    requests.fetch_add(1, Relaxed);
                    if held.len() > 20 {
                        // Booked by an earlier configuration, most of the time.
                        held.drain(..10);
                    }
                }
            }));
        }
        // Threads end with the reloads, also where an assertion fails.
        let reloads = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for number in 0..RELOADS {
                let seen = requests.load(Relaxed);
                fixture.write(if number % 2 == 0 { BOOKING } else { PREFIX });
                fixture.look();
                assert_eq!((fixture.generation(), fixture.error().as_str()), (number + 2, ""));
                while requests.load(Relaxed) < seen + 5 {
                    assert!(!threads.iter().any(|thread| thread.is_finished()), "a request failed");
                    std::thread::yield_now();
                }
            }
        }));
        done.store(true, Relaxed);
        if let Err(panic) = reloads {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(requests.load(Relaxed) >= 5 * RELOADS as u64);
    assert_eq!(fixture.in_flight(), 0);
    assert!(fixture.dispatcher.demand().is_empty());
    let text = crate::metrics::render(&fixture.registry);
    let waiting = |line: &&str| line.starts_with("llm_d_epp_flow_control_queue_size");
    assert!(text.lines().filter(waiting).all(|line| line.ends_with(" 0")), "{text}");
    fixture.write(PREFIX);
    fixture.look();
    for _ in 0..20 {
        let again = send(&fixture.dispatcher, &prompt);
        assert_eq!(*again.decision().primary_endpoint().id(), first, "its cache is known");
    }
}
