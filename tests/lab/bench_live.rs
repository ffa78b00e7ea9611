//! The parts of `make bench-live` that need no processes: arguments, command lines, reading of
//! responses and pages, and the table.

#![allow(dead_code, reason = "what starts processes is not called here")]

#[path = "../../benches/live/arguments.rs"]
mod arguments;
#[path = "../../benches/live/commands.rs"]
mod commands;
#[path = "../../benches/live/events.rs"]
mod events;
#[path = "../../benches/live/metrics.rs"]
mod metrics;
#[path = "../../benches/live/table.rs"]
mod table;

use std::time::Duration;

use clap::Parser;
use usher::cli::Command;
use usher::replay::{Seen, Settings, Summary, summarize};
use usher_lab::cli::demo::ports::Ports;

use crate::processes;

use arguments::{Arguments, PolicyName};
use commands::Place;
use events::Reader;
use metrics::{FirstTokens, Load, Share, Ticks, Used, first_tokens, shares};
use table::{FIGURES, Row, Run};

const MS: Duration = Duration::from_millis(1);

fn arguments(more: &[&str]) -> Arguments {
    Arguments::try_parse_from(["bench-live"].iter().chain(more)).unwrap()
}

fn place(servers: u16) -> Place {
    let name = |name: &str| name.to_owned();
    Place {
        usher: name("usher"),
        envoy: name("envoy"),
        config: name("config.yaml"),
        endpoints: name("endpoints.yaml"),
        envoy_config: name("envoy.json"),
        ports: Ports::from_first(8081, servers).unwrap(),
    }
}

#[test]
fn cases_match_the_suite_with_equal_servers() {
    assert_eq!(arguments(&[]).cells().len(), 4, "two workloads, two engine models");
    let error = Arguments::try_parse_from(["bench-live", "--cases", "mixed-fleet"]).unwrap_err().to_string();
    assert!(error.contains("choose from conversations, agents, long-answers"), "{error}");
    assert!(Arguments::try_parse_from(["bench-live", "--utilization", "0"]).is_err());
}

#[test]
fn live_servers_match_the_replay() {
    let arguments = arguments(&["--servers", "3", "--seed", "7", "--seconds", "20"]);
    for cell in arguments.cells() {
        let settings = arguments.settings(&cell);
        let words = commands::servers(&place(3), &arguments, &cell).into_iter().map(Into::into);
        let Ok(Command::Lab(usher_lab::cli::Command::Sim(sim))) = usher::cli::parse(words) else {
            panic!("{cell:?}")
        };
        let config = sim.config();
        assert_eq!((config.time_scale, config.stream_interval), (5.0, 10));
        assert_eq!((config.model.as_str(), sim.count), (usher::replay::Script::MODEL, 3));
        assert_eq!(settings.servers.len(), 3);
        for (server, number) in settings.servers.iter().zip(0..) {
            let seed = config.engine.seed.wrapping_add(number);
            assert_eq!(server.engine, usher::sim::EngineConfig { seed, ..config.engine.clone() });
        }
    }
}

#[test]
fn generated_command_lines_are_valid() {
    for policy in [PolicyName::ExpectedLatency, PolicyName::RouterDefault] {
        let parsed = usher::cli::parse(commands::usher(&place(2), policy).into_iter().map(Into::into));
        assert!(matches!(parsed, Ok(Command::Serve(_))), "{policy:?}: {parsed:?}");
        policy.policy().unwrap();
    }
    let config = processes::with_endpoints(arguments::EXPECTED_LATENCY, "a \"b\".yaml").unwrap();
    let config = usher::config::EndpointPickerConfig::parse(&config).unwrap();
    assert_eq!(config.data_layer.discovery.unwrap().plugin_ref.value, "file-discovery");
}

#[test]
fn replay_speed_scales_with_the_servers() {
    let arguments = arguments(&["--cases", "conversations", "--seconds", "20"]);
    let slow = arguments.settings(&arguments.cells()[0]);
    let mut fast = slow.clone();
    fast.accelerate(5.0);
    let work = |settings: &Settings| settings.servers[0].engine.work(1000.0, 2000.0, 100.0);
    assert!((work(&slow) / work(&fast) - 5.0).abs() < 1e-6);
    assert_eq!((fast.ttft_limit, fast.tpot_limit), (400 * MS, 10 * MS));
    let at = |settings: &Settings| settings.arrivals[1].at.as_secs_f64();
    assert!((at(&slow) / at(&fast) - 5.0).abs() < 1e-6);
    assert_eq!(fast.scrape_interval, slow.scrape_interval, "pickers scrape as they do");
}

#[test]
fn stream_is_read_at_any_split() {
    let stream = concat!(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\" the\"}}],\"usage\":null}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\" cat sat\"}}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,",
        "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
        "data: [DONE]\n\n",
    );
    for size in [1, 7, 60, stream.len()] {
        let mut reader = Reader::default();
        let with_text = stream.as_bytes().chunks(size).filter(|piece| reader.feed(piece)).count();
        assert!((1..=2).contains(&with_text), "a role is no text");
        let usage = reader.usage.unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens()), (9, 3, 4));
        assert_eq!((reader.text.as_str(), reader.done), (" the cat sat", true));
    }
}

#[test]
fn pages_of_servers_and_of_the_machine_are_read() {
    let page = "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"m\"} 4.0\n\
                vllm:time_to_first_token_seconds_sum{engine=\"0\",model_name=\"m\"} 2.5\n";
    let mut all = first_tokens(page);
    all.add(first_tokens(""));
    assert_eq!((all, all.mean()), (FirstTokens { seconds: 2.5, count: 4.0 }, Some(0.625)));
    assert_eq!(FirstTokens::default().mean(), None);
    let before = Ticks::parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4\n").unwrap();
    let after = Ticks::parse("cpu  150 10 60 860 60 5 5 0 0 0\n").unwrap();
    assert_eq!(after.busy_since(&before), Some(80.0 / 150.0));
    assert_eq!(before.busy_since(&before), None);
    assert_eq!(Ticks::parse("intr 1 2 3"), None);
    let used = |text| Used::parse(text).unwrap();
    assert_eq!(used("2000000000 500000000 77\n").waited, 500 * MS);
    assert_eq!(Used::parse("1"), None);
    let [before, after] = ["1000000000 0 1", "2000000000 500000000 77"].map(|text| [("Envoy", used(text))]);
    let expected = Share { name: "Envoy", cores: 0.5, waited: 0.25 };
    assert_eq!(shares(&before, &after, Duration::from_secs(2)), [expected]);
}

/// Requests with this time to the first token and 9 more tokens of 10 ms each.
fn summary(ttft: Duration, cached_tokens: u32) -> Summary {
    let arguments = arguments(&["--cases", "conversations", "--seconds", "20"]);
    let settings = arguments.settings(&arguments.cells()[0]);
    let seen = Seen {
        server: Some(0),
        first: Some(ttft),
        last: Some(ttft + 90 * MS),
        prompt_tokens: 100,
        cached_tokens,
        output_tokens: 10,
        ..Seen::default()
    };
    summarize("x", &settings, &[seen])
}

fn run(live: Summary, replays: Vec<Summary>) -> Run {
    let processes = vec![Share { name: "Usher", cores: 0.25, waited: 0.02 }];
    let load = Load { machine: Some(0.5), processes, late: (MS, 2 * MS) };
    Run { policy: "x", live, replays, delay: 3 * MS, load, failures: (0, None) }
}

#[test]
fn figures_are_compared_with_the_median_replay() {
    let replays = [30, 10, 20].map(|ttft| summary(ttft * MS, 40)).to_vec();
    let run = run(summary(23 * MS, 50), replays);
    let row = |name: &str| {
        let figure = FIGURES.iter().find(|figure| figure.name == name).unwrap();
        Row::new(figure, &run, 5.0).unwrap()
    };
    let first = row("TTFT p50, s");
    assert_eq!(((first.live * 1e3).round(), first.replays), (115.0, [0.05, 0.1, 0.15]));
    assert!(!first.agrees());
    assert_eq!((row("TPOT p99, ms").live, row("TPOT p99, ms").ratio()), (50.0, 1.0));
    assert_eq!((row("hits").live, row("hits").replays[1]), (0.5, 0.4));
    assert_eq!(run.differing(5.0), ["TTFT p50, s (1.15)", "TTFT p90, s (1.15)", "hits (1.25)"]);
    let table = run.table(5.0);
    assert_eq!(table.matches("  differs").count(), 3, "{table}");
    assert!(
        table.contains(
            "real time: 3.0 ms between client and engine, also in replay; sent late by 1.0 ms (p99 2.0 ms)"
        ),
        "{table}"
    );
    assert!(
        table.contains("Usher 0.25; waited for one at most 2.00 % of the time; machine 50 % busy"),
        "{table}"
    );
    assert!(!table.contains("NOT VALID"), "{table}");
}

#[test]
fn busy_machine_and_failed_requests_are_reported() {
    let mut run = run(summary(20 * MS, 0), vec![summary(20 * MS, 0)]);
    run.load.machine = Some(0.95);
    run.failures = (3, Some("status 503".to_owned()));
    let table = run.table(5.0);
    assert!(table.contains("NOT VALID: the machine was more than 90 % busy"), "{table}");
    run.load.processes[0].waited = 0.001;
    assert!(!run.is_disturbed(), "others kept it busy, and were not in the way");
    assert!(table.contains("3 requests failed, the first one so: status 503"), "{table}");
    assert!(run.differing(5.0).is_empty(), "no hits on either side agree");
    run.live = summarize("x", &arguments(&[]).settings(&arguments(&[]).cells()[0]), &[Seen::default()]);
    assert!(run.table(5.0).contains("nothing was answered"));
}
