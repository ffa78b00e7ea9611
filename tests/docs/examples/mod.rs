//! The configurations under deploy/config: each is valid, and does what it is for, with
//! simulated servers behind a picker that is asked over gRPC.

mod pool;
#[path = "../../wire/support.rs"]
#[allow(dead_code, reason = "shared with tests that need more of it")]
mod wire;

use std::collections::BTreeSet;
use std::path::PathBuf;

use pool::{Pod, Pool};
use prometheus::Registry;
use usher::cli::check::{CheckArgs, Output, run_with};
use usher::config::EndpointPickerConfig;
use usher::registry::Pipeline;
use usher::schedule::{SchedulerMetrics, State};

const FOLDER: &str = "deploy/config";

/// The examples, by the names of their files without the ending.
fn examples() -> Vec<String> {
    let entries = std::fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = entries
        .map(|path| {
            assert_eq!(path.extension().unwrap(), "yaml", "{}", path.display());
            path.file_stem().unwrap().to_str().unwrap().to_owned()
        })
        .collect();
    names.sort();
    names
}

fn path(example: &str) -> PathBuf {
    PathBuf::from(format!("{FOLDER}/{example}.yaml"))
}

/// Returns `true` if a file says that it needs the flag.
fn needs_experimental(example: &str) -> bool {
    std::fs::read_to_string(path(example)).unwrap().contains("--allow-experimental-plugins")
}

#[test]
fn every_example_is_valid_and_names_its_flags() {
    for example in examples() {
        let text = std::fs::read_to_string(path(&example)).unwrap();
        let config = EndpointPickerConfig::parse(&text).unwrap_or_else(|error| panic!("{example}: {error}"));
        for allowed in [false, true] {
            let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
            let built = Pipeline::build(Some(&config), allowed, &metrics, &State::default());
            let is_fine = allowed || !needs_experimental(&example);
            assert_eq!(
                built.is_ok(),
                is_fine,
                "{example}, experimental plugins allowed: {allowed}: {built:?}"
            );
            let args = CheckArgs {
                files: vec![path(&example)],
                output: Output::Text,
                allow_experimental_plugins: allowed,
                compare: None,
                endpoints_file: None,
                admin: None,
                memory_budget: usher::settings::MemoryBudget::Off,
            };
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let code = run_with(&args, &mut std::io::empty(), &mut out, &mut err);
            let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
            assert_eq!((code == 0, err.is_empty()), (is_fine, is_fine), "{example}: {err}");
            assert_eq!(out.starts_with(&format!("{FOLDER}/{example}.yaml is valid\n")), is_fine, "{out}");
            for wrong in ["is deprecated", "has no effect", "is never asked", "ignores what is set"] {
                assert!(!out.contains(wrong), "{example}: {out}");
            }
            for line in out.lines() {
                assert!(line.chars().count() <= 80, "{example}: {line:?}");
            }
        }
    }
}

#[test]
fn configurations_of_the_demo_and_of_replay_are_valid() {
    let files =
        ["deploy/demo", "deploy/replay"].into_iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let mut waiting = BTreeSet::new();
    let mut count = 0;
    for path in files.map(|entry| entry.unwrap().path()) {
        let text = std::fs::read_to_string(&path).unwrap();
        if !text.contains("kind: EndpointPickerConfig") {
            continue;
        }
        count += 1;
        let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
        let config = EndpointPickerConfig::parse(&text).unwrap();
        let pipeline = Pipeline::build(Some(&config), true, &metrics, &State::default());
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if pipeline.flow_control.is_some() {
            waiting.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
    }
    assert!(count >= 10, "{count}");
    // Requests wait for the first server.
    for name in ["autoscale", "scale-from-zero"] {
        assert!(waiting.contains(name), "{waiting:?}");
    }
}

/// Plays the scenario of an example, by the example's name.
async fn scenario(example: &str) {
    match example {
        "context-length" => context_length().await,
        "data-parallel" => data_parallel().await,
        "default" => default().await,
        "epd" => epd().await,
        "expected-latency" => expected_latency().await,
        "flow-control" => flow_control().await,
        "label-routing" => label_routing().await,
        "lora" => lora().await,
        "pd" => pd().await,
        "pd-joint" => pd_joint().await,
        "pd-topology" => pd_topology().await,
        "precise" => precise().await,
        "prefix-aware" => prefix_aware().await,
        "session-affinity" => session_affinity().await,
        "sticky-until-saturated" => sticky_until_saturated().await,
        _ => panic!("{FOLDER}/{example}.yaml is an example that nobody tries: add what it is for"),
    }
}

#[tokio::test]
async fn every_example_has_its_effect() {
    let examples = examples();
    assert!(examples.iter().any(|example| example == "default"));
    for example in examples {
        scenario(&example).await;
    }
}

/// A prompt of one block.
fn block() -> String {
    "word".repeat(64)
}

/// Requests go where nobody waits, and where their prompt is cached.
async fn default() {
    let mut pool = Pool::start("default", &[Pod::default(), Pod::default()]).await;
    pool.keep_busy(0).await;
    for number in 0..5 {
        let served = pool.ask(&[], "m", &format!("{number}, hi")).await;
        assert_eq!(served.server, 1);
        assert!(!served.request.destination().contains(','), "one endpoint, no fallbacks");
        assert_eq!(served.response.get("x-went-into-resp-headers"), Some("true"));
    }
    pool.keep_busy(1).await;
    pool.release(0).await;
    for number in 0..5 {
        assert_eq!(pool.ask(&[], "m", &format!("{number}, hello")).await.server, 0);
    }
    pool.release(1).await;
    let home = pool.ask(&[], "m", &block()).await.server;
    pool.until_learned(11).await;
    for _ in 0..5 {
        assert_eq!(pool.ask(&[], "m", &block()).await.server, home);
    }
}

/// Prompts go where they went before when no engine is heard and no tokens are known.
async fn precise() {
    let pool = Pool::start("precise", &[Pod::default(), Pod::default()]).await;
    let home = pool.ask(&[], "m", &block()).await.server;
    pool.until_learned(1).await;
    for _ in 0..5 {
        assert_eq!(pool.ask(&[], "m", &block()).await.server, home);
    }
}

/// Conversations stay where they began, and begin everywhere.
async fn prefix_aware() {
    let pool = Pool::start("prefix-aware", &vec![Pod::default(); 4]).await;
    let conversation = |number: usize| number.to_string().repeat(2000);
    let mut homes = Vec::new();
    for number in 1..=4 {
        homes.push(pool.ask(&[], "m", &conversation(number)).await.server);
    }
    assert_eq!(homes.iter().collect::<BTreeSet<_>>().len(), 4, "each in its turn: {homes:?}");
    pool.until_learned(4 * 8).await;
    for (number, home) in (1..).zip(homes) {
        let more = conversation(number) + " and so on";
        assert_eq!(pool.ask(&[], "m", &more).await.server, home);
    }
}

/// A prompt stays where it is cached until there is too much to compute there.
async fn sticky_until_saturated() {
    let pool = Pool::start("sticky-until-saturated", &[Pod::default(), Pod::default()]).await;
    let home = pool.ask(&[], "m", &block()).await.server;
    pool.until_learned(1).await;
    for _ in 0..5 {
        assert_eq!(pool.ask(&[], "m", &block()).await.server, home);
    }
    // 80,000 tokens are five seconds and a little. A long prompt goes to either endpoint,
    // and the next one to the other.
    let long = |what: &str| what.repeat(320_000);
    let mut held = pool.hold(&long("a")).await;
    if held.server != home {
        let other = pool.hold(&long("b")).await;
        assert_eq!(other.server, home, "it has less to compute");
        held = other;
    }
    pool.until_in_flight(1).await;
    assert_ne!(pool.ask(&[], "m", &block()).await.server, home);
    drop(held);
}

/// A prompt goes where it fits, and a short one to the smaller.
async fn context_length() {
    let pod = |range| Pod { labels: range, ..Pod::default() };
    let short: &[(&str, &str)] = &[("llm-d.ai/context-length-range", "0-1000")];
    let long: &[(&str, &str)] = &[("llm-d.ai/context-length-range", "0-32000")];
    let pool = Pool::start("context-length", &[pod(short), pod(long)]).await;
    let words = |count: usize| "word ".repeat(count);
    for _ in 0..5 {
        assert_eq!(pool.ask(&[], "m", "hi").await.server, 0);
        assert_eq!(pool.ask(&[], "m", &words(4000)).await.server, 1);
    }
}

/// The pod is the destination, and its idle rank is named in the header.
async fn data_parallel() {
    let mut pool = Pool::start("data-parallel", &[Pod::default(), Pod::default()]).await;
    pool.keep_busy(1).await;
    for _ in 0..5 {
        let served = pool.ask(&[], "m", "hi").await;
        assert_eq!(served.server, 0);
        assert_eq!(served.request.destination(), "127.0.0.1:8000");
    }
}

const PREFILLER: &str = "x-prefiller-host-port";
const ENCODERS: &str = "x-encoder-hosts-ports";

fn role(labels: &'static [(&'static str, &'static str)]) -> Pod {
    Pod { labels, ..Pod::default() }
}

/// Every kind of pod does its own work, and a text has nothing to encode.
async fn epd() {
    let (encode, prefill) = (role(&[("llm-d.ai/role", "encode")]), role(&[("llm-d.ai/role", "prefill")]));
    let pods = [encode.clone(), encode.clone(), encode, prefill, role(&[("llm-d.ai/role", "decode")])];
    let mut pool = Pool::start("epd", &pods).await;
    pool.keep_busy(1).await;
    for _ in 0..5 {
        let text = pool.chat("hi", None).await;
        assert_eq!((text.server, pool.servers_in(text.request.get(PREFILLER))), (4, vec![3]));
        assert_eq!(text.request.get(ENCODERS), None);
        let image = pool.chat("hi", Some("http://example.com/cat.png")).await;
        assert_eq!((image.server, pool.servers_in(image.request.get(PREFILLER))), (4, vec![3]));
        assert_eq!(pool.servers_in(image.request.get(ENCODERS)), [0, 2]);
    }
}

/// The request goes to who decodes, the prompt to who computes it; neither to who is busy.
async fn pd() {
    let (prefill, decode) = (role(&[("llm-d.ai/role", "prefill")]), role(&[("llm-d.ai/role", "decode")]));
    let mut pool = Pool::start("pd", &[prefill.clone(), prefill, decode.clone(), decode]).await;
    for (busy_prefill, busy_decode) in [(0, 2), (1, 3)] {
        pool.keep_busy(busy_prefill).await;
        pool.keep_busy(busy_decode).await;
        for _ in 0..5 {
            let served = pool.ask(&[], "m", "hi").await;
            assert_eq!(served.server, 5 - busy_decode);
            assert_eq!(pool.servers_in(served.request.get(PREFILLER)), [1 - busy_prefill]);
        }
        pool.release(busy_prefill).await;
        pool.release(busy_decode).await;
    }
}

/// A prompt comes back to where it was computed, unless it would wait there for longer
/// than it takes elsewhere. It is short: what others would wait for a long one counts, too.
async fn expected_latency() {
    let mut pool = Pool::start("expected-latency", &vec![Pod::default(); 4]).await;
    let prompt = "word ".repeat(1000);
    let first = pool.ask(&[], "m", &prompt).await.server;
    for _ in 0..5 {
        assert_eq!(pool.ask(&[], "m", &prompt).await.server, first);
    }
    pool.keep_busy(first).await;
    assert_ne!(pool.ask(&[], "m", &prompt).await.server, first);
}

/// Prefill and decode are in one rack, unless others decode there for long responses.
async fn pd_joint() {
    const RACK: &str = "topology.kubernetes.io/rack";
    let pod = |role_of, rack| role(Box::leak(Box::new([("llm-d.ai/role", role_of), (RACK, rack)])));
    let pods = [pod("prefill", "a"), pod("prefill", "b"), pod("decode", "a"), pod("decode", "b")];
    let mut pool = Pool::start("pd-joint", &pods).await;
    let prompt = "word ".repeat(4000);
    for _ in 0..8 {
        let served = pool.ask(&[], "m", &prompt).await;
        assert_eq!(pool.servers_in(served.request.get(PREFILLER)), [served.server - 2]);
        pool.until_idle(served.server).await;
    }
    // Another prompt, which nobody has cached. Who computes it depends on who did before.
    pool.keep_busy(2).await;
    let served = pool.ask_for(200, &"other ".repeat(4000)).await;
    assert_eq!(served.server, 3);
    assert_eq!(pool.servers_in(served.request.get(PREFILLER)).len(), 1);
}

/// Prefill is in the zone of decode, and in its rack unless that is busy.
async fn pd_topology() {
    const RACK: &str = "topology.kubernetes.io/rack";
    const ZONE: &str = "topology.kubernetes.io/zone";
    let pods = [
        role(&[("llm-d.ai/role", "decode"), (ZONE, "a"), (RACK, "a1")]),
        role(&[("llm-d.ai/role", "prefill"), (ZONE, "b"), (RACK, "b1")]),
        role(&[("llm-d.ai/role", "prefill"), (ZONE, "a"), (RACK, "a1")]),
        role(&[("llm-d.ai/role", "prefill"), (ZONE, "a"), (RACK, "a2")]),
    ];
    let mut pool = Pool::start("pd-topology", &pods).await;
    for prefill in [2, 3] {
        for _ in 0..5 {
            let served = pool.ask(&[], "m", "hi").await;
            assert_eq!(served.server, 0);
            assert_eq!(pool.servers_in(served.request.get(PREFILLER)), [prefill]);
        }
        pool.keep_busy(prefill).await;
    }
}

/// Draining pods get nothing, and a tier that is asked for is given.
async fn label_routing() {
    let pod = |labels| Pod { labels, ..Pod::default() };
    let pods = [
        pod(&[("example.com/tier", "gold"), ("draining", "true")]),
        pod(&[("example.com/tier", "gold")]),
        pod(&[("example.com/tier", "silver")]),
    ];
    let pool = Pool::start("label-routing", &pods).await;
    for _ in 0..8 {
        assert_eq!(pool.ask(&[("x-tier", "gold")], "m", "hi").await.server, 1);
        assert_eq!(pool.ask(&[("x-tier", "silver")], "m", "hi").await.server, 2);
        assert_ne!(pool.ask(&[], "m", "hi").await.server, 0);
    }
}

/// An adapter is used where it is loaded, and another where there is room.
async fn lora() {
    let pod = || Pod { loras: &["french", "poems"], ..Pod::default() };
    let mut pool = Pool::start("lora", &[pod(), pod()]).await;
    pool.load(0, "french").await;
    for _ in 0..5 {
        assert_eq!(pool.ask(&[], "french", "hi").await.server, 0);
        assert_eq!(pool.ask(&[], "poems", "hi").await.server, 1);
    }
}

/// A server that is full gets no more; who waits goes in turns.
async fn flow_control() {
    let pool = Pool::start("flow-control", &[Pod::default()]).await;
    let mut running = Vec::new();
    for _ in 0..64 {
        running.push(pool.hold("hi").await);
    }
    let mut waiting = Vec::new();
    for (number, tenant) in ["a", "a", "b"].into_iter().enumerate() {
        waiting.push(pool.begin(&[("x-llm-d-inference-fairness-id", tenant)], "hi").await);
        pool.until_waiting(number + 1).await;
    }
    let [first, second, other] = <[_; 3]>::try_from(waiting).ok().unwrap();
    running.pop();
    running.push(first.sent().await);
    running.pop();
    running.push(other.sent().await);
    pool.until_waiting(1).await;
    running.pop();
    second.sent().await;
}

/// A session stays where it began.
async fn session_affinity() {
    const TOKEN: &str = "x-session-token";
    let pods = vec![Pod::default(); 4];
    let pool = Pool::start("session-affinity", &pods).await;
    for _ in 0..4 {
        let first = pool.ask(&[], "m", "hi").await;
        let token = first.response.get(TOKEN).expect("the endpoint in the response's headers");
        for _ in 0..8 {
            assert_eq!(pool.ask(&[(TOKEN, token)], "m", "hi").await.server, first.server);
        }
    }
}
