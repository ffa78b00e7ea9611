//! The parts of `make bench-wire` that need no processes: arguments, command lines,
//! medians and budgets, the page and its plots.

#![allow(dead_code, reason = "what starts processes is not called here")]

#[path = "../../benches/wire/arguments.rs"]
mod arguments;
#[path = "../../benches/wire/generator.rs"]
mod generator;
#[path = "../../benches/wire/machine.rs"]
mod machine;
#[path = "../../benches/wire/metric.rs"]
mod metric;
#[path = "../../benches/wire/pickers.rs"]
mod pickers;
#[path = "../../benches/wire/plot.rs"]
mod plot;
#[path = "../../benches/wire/report.rs"]
mod report;
#[path = "../../benches/wire/text.rs"]
mod text;
#[path = "../../benches/wire/verdict.rs"]
mod verdict;
#[path = "../../benches/wire/workloads.rs"]
mod workloads;

use clap::Parser;
use serde_json::json;
use usher::cli::Command;

use crate::processes;

use arguments::{Arguments, order};
use generator::Times;
use machine::Machine;
use metric::{LoadReport, Metric, Run};
use pickers::{LIMIT, Picker, Place, USHER};
use plot::Bar;
use report::{Failure, Report, Section};
use verdict::{Summary, Verdict};
use workloads::{Bound, Check, WORKLOADS, Workload};

fn workload(name: &str) -> &'static Workload {
    WORKLOADS.iter().find(|workload| workload.name == name).unwrap()
}

fn place() -> Place {
    Place::shown().unwrap()
}

/// Output of the generator, with all parts that are read.
fn load(picker: &str, cpu_ms: f64, p99: f64) -> LoadReport {
    serde_json::from_value(json!({
        "target": "127.0.0.1:9002", "protocol": "ext_proc", "seconds": 10.0,
        "requests": {"due": 1000, "completed": 1000, "failed": 0}, "requests_per_second": 500.0,
        "chunks": {"sent": 10, "returned": 10, "per_second": 20_000.0},
        "latency_ms": {
            "total": {"count": 1000, "mean": 1.0, "p50": p99 / 4.0, "p90": 2.0, "p99": p99, "p999": 9.0, "max": 9.0},
            "chunk": {"count": 1000, "mean": 1.0, "p50": 0.1, "p90": 0.2, "p99": 0.3, "p999": 0.4, "max": 0.5},
        },
        "errors": {}, "generator_cpu_share": 0.5, "late": {"requests": 5, "share": 0.005, "p99_ms": 1.5, "max_ms": 3.0},
        "endpoints": {"127.0.0.1:8000": 1000},
        "peak_body_bytes_in_flight": 4 << 20,
        "processes": [
            {"name": picker, "pid": 1, "cpu_seconds": 0.5, "cpu_ms_per_request": cpu_ms, "cpu_us_per_chunk": 2.5,
             "rss_before_mib": 10.0, "rss_mib": 20.0, "peak_rss_mib": 30.0},
            {"name": "envoy", "pid": 2, "cpu_seconds": 1.0, "cpu_ms_per_request": 0.5,
             "rss_before_mib": 10.0, "rss_mib": 20.0, "peak_rss_mib": 30.0},
        ],
    }))
    .unwrap()
}

fn run(picker: &str, round: usize, cpu_ms: f64) -> Run {
    let straight = Some(load("", 0.0, 1.0));
    Run {
        picker: picker.to_owned(),
        round,
        load: load(picker, cpu_ms, 4.0),
        straight,
        cores_before: Some(0.02),
    }
}

/// Three rounds of the limit and of Usher, with these times per request.
fn runs(limit: [f64; 3], usher: [f64; 3]) -> Vec<Run> {
    let of = |picker, values: [f64; 3]| (1..).zip(values).map(move |(round, cpu)| run(picker, round, cpu));
    of(LIMIT, limit).chain(of(USHER, usher)).collect()
}

fn judge(metric: Metric, bound: Bound, runs: &[Run]) -> Verdict {
    Verdict::of(&Check { metric, bound }, LIMIT, USHER, runs)
}

fn report(sections: Vec<Section>, pickers: Vec<Picker>) -> Report {
    let machine = Machine {
        cpu: "A processor".to_owned(),
        cores: 2,
        memory_gib: 15.6,
        kernel: "6.1".to_owned(),
        rustc: "rustc 1.95.0".to_owned(),
        envoy: "1.40.0".to_owned(),
        commit: "0123456789ab".to_owned(),
        day: "2026-01-31".to_owned(),
    };
    let command = "make bench-wire".to_owned();
    Report { machine, command, rounds: 3, quick: false, pickers, place: place(), sections }
}

fn pair() -> Vec<Picker> {
    vec![Picker::limit(), Picker::usher()]
}

#[test]
fn the_median_is_the_middle_or_between_the_two_in_the_middle() {
    let summary = |values: &[f64]| Summary::of(values.to_vec());
    assert_eq!(summary(&[3.0, 1.0, 8.0]), Some(Summary { median: 3.0, min: 1.0, max: 8.0 }));
    assert_eq!(summary(&[4.0, 1.0, 8.0, 2.0]), Some(Summary { median: 3.0, min: 1.0, max: 8.0 }));
    assert_eq!(summary(&[7.0]), Some(Summary { median: 7.0, min: 7.0, max: 7.0 }));
    assert_eq!(summary(&[]), None);
}

#[test]
fn a_budget_is_met_or_missed_by_medians() {
    let three = runs([0.1, 0.1, 9.0], [0.15, 0.0, 0.15]);
    let verdict = judge(Metric::CpuPerRequest, Bound::Times(1.5), &three);
    assert_eq!((verdict.met, verdict.ratio.map(|ratio| (ratio * 100.0).round())), (Some(true), Some(150.0)));
    assert_eq!(judge(Metric::CpuPerRequest, Bound::Times(1.4), &three).met, Some(false));

    // Throughput is the same in all of them.
    assert_eq!(judge(Metric::Throughput, Bound::Share(1.0), &three).met, Some(true));
    assert_eq!(judge(Metric::Throughput, Bound::Share(1.01), &three).met, Some(false));

    // 30 MiB at most, 4 MiB of bodies.
    let memory = judge(Metric::PeakMemory, Bound::MibAndBodies(22.0, 2.0), &three);
    assert_eq!((memory.met, memory.allowed), (Some(true), Some(30.0)));
    assert_eq!(judge(Metric::PeakMemory, Bound::MibAndBodies(21.0, 2.0), &three).met, Some(false));

    // 0.5 s in 10 s, and 0.02 cores without streams.
    let idle = judge(Metric::IdleCpu, Bound::AtMost(0.031), &three);
    assert_eq!((idle.met, idle.ratio), (Some(true), None));
    assert_eq!(judge(Metric::IdleCpu, Bound::AtMost(0.029), &three).met, Some(false));
}

#[test]
fn metrics_without_a_baseline_are_not_judged() {
    let no_limit = [run(USHER, 1, 0.1)];
    assert_eq!(judge(Metric::CpuPerRequest, Bound::Times(1.5), &no_limit).met, None);
    let nothing = runs([0.0; 3], [0.1; 3]);
    let verdict = judge(Metric::CpuPerRequest, Bound::Times(1.5), &nothing);
    assert_eq!((verdict.met, verdict.ratio), (None, None));
    let mut bare = run(USHER, 1, 0.1);
    bare.straight = None;
    bare.cores_before = None;
    bare.load = LoadReport::default();
    for workload in WORKLOADS {
        for metric in workload.checks.iter().map(|check| check.metric).filter(|m| *m != Metric::Throughput) {
            assert_eq!(metric.of(&bare), None, "{metric:?}");
        }
    }
}

#[test]
fn metrics_come_from_the_generator_output() {
    let run = run(USHER, 1, 0.125);
    let expected = [
        (Metric::CpuPerRequest, 0.125),
        (Metric::CpuBeyondIdle, 0.075),
        (Metric::CpuPerChunk, 2.5),
        (Metric::EnvoyCpuPerRequest, 0.5),
        (Metric::Throughput, 500.0),
        (Metric::ChunksPerSecond, 20_000.0),
        (Metric::P99, 4.0),
        (Metric::AddedP50, 0.75),
        (Metric::AddedP99, 3.0),
        (Metric::StraightP99, 1.0),
        (Metric::ChunkP99, 0.3),
        (Metric::PeakMemory, 30.0),
        (Metric::Memory, 20.0),
        (Metric::BodiesInFlight, 4.0),
        (Metric::MemoryPerStream, 10.24),
        (Metric::CpuWithStreams, 0.05),
        (Metric::CpuWithoutStreams, 0.02),
    ];
    for (metric, value) in expected {
        let found = metric.of(&run).unwrap();
        assert!((found - value).abs() < 1e-9, "{metric:?}: {found}");
    }
    assert!((Metric::IdleCpu.of(&run).unwrap() - 0.03).abs() < 1e-9);
}

#[test]
fn pickers_take_turns() {
    let pickers = [Picker::limit(), Picker::usher(), Picker::parse("go=epp").unwrap()];
    let names = |round| order(&pickers, round).iter().map(|picker| picker.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(1), [LIMIT, USHER, "go"]);
    assert_eq!(names(2), ["go", USHER, LIMIT]);
    assert_eq!(names(3), names(1));
}

#[test]
fn wrong_arguments_are_explained() {
    let error = |words: &[&str]| {
        let words = ["bench-wire"].iter().chain(words);
        Arguments::try_parse_from(words).unwrap_err().to_string()
    };
    let unknown = error(&["--only", "small-direct,tiny"]);
    assert!(unknown.contains("'tiny'") && unknown.contains("choose from small-envoy, "), "{unknown}");
    let bare = error(&["--peer", "epp"]);
    assert!(bare.contains("there is no '='; write name=COMMAND"), "{bare}");
    assert!(error(&["--peer", "usher=epp"]).contains("is taken"));
    assert!(error(&["--peer", "=epp"]).contains("the name must be"));
    assert!(error(&["--peer", "go= "]).contains("a command must follow"));
    assert!(error(&["--rounds", "0"]).contains("--rounds"));

    let twice = Arguments::try_parse_from(["bench-wire", "--peer", "a=x", "--peer", "a=y"]).unwrap();
    assert!(twice.pickers().unwrap_err().contains("two pickers are called \"a\""));
}

#[test]
fn envoys_version_is_found_behind_its_path() {
    let said = "/a/version/bin/envoy  version: 0123abcd/1.40.0/Clean/RELEASE/BoringSSL";
    assert_eq!(machine::envoy_version(said), "1.40.0");
    assert_eq!(machine::envoy_version("something else"), "something else");
}

#[test]
fn only_a_full_run_is_published() {
    let parse = |words: &[&str]| Arguments::try_parse_from(["bench-wire"].iter().chain(words)).unwrap();
    let all = parse(&["--bench"]);
    assert!(all.is_full());
    assert_eq!(all.workloads().len(), WORKLOADS.len());
    let two = parse(&["--only", "idle-direct,small-direct"]);
    let names: Vec<&str> = two.workloads().iter().map(|workload| workload.name).collect();
    assert_eq!(names, ["small-direct", "idle-direct"]);
    assert!(!two.is_full() && !parse(&["--quick"]).is_full() && !parse(&["--rounds", "2"]).is_full());
}

#[test]
fn other_pickers_get_ushers_flags() {
    let words = Picker::parse("go=/opt/epp --v=1 -x 'a b'").unwrap().words(&place());
    assert_eq!(words[..4], ["sh", "-c", "exec /opt/epp --v=1 -x 'a b' \"$@\"", "go"]);
    let usher = Picker::usher().words(&place());
    let common = words.iter().position(|word| word == "--grpc-port=8082").unwrap();
    assert!(usher.ends_with(&words[common..]));
    // Each flag is one that Usher has.
    let parsed = usher::cli::parse(usher.iter().map(Into::into));
    assert!(parsed.is_ok(), "{parsed:?}");
    assert_eq!(
        Picker::limit().words(&place()).join(" "),
        "limit --grpc-port=8082 --grpc-health-port=8083 --destination=127.0.0.1:8087"
    );
    assert!(usher::cli::parse(pickers::servers(&place()).iter().map(Into::into)).is_ok());
}

#[test]
fn generator_command_matches_the_workload() {
    let small = workload("small-envoy");
    let ports = place().ports;
    let words = |quick| {
        let target = generator::target(small.way, &ports);
        generator::words(small, Times::of(small, quick), &target, &["usher=7".to_owned()]).join(" ")
    };
    assert_eq!(
        words(false),
        "load --target http://127.0.0.1:8081 --tokens 200 --rate 500 --duration 20s --warm-up 2s \
         --pid usher=7 --output json"
    );
    assert!(words(true).contains(" --duration 2s --warm-up 500ms "));
}

#[test]
fn generator_accepts_the_arguments_of_every_workload() {
    for workload in WORKLOADS {
        let target = generator::target(workload.way, &place().ports);
        let words = generator::words(workload, Times::of(workload, false), &target, &["usher=7".to_owned()]);
        let parsed = usher::cli::parse(["usher".to_owned()].into_iter().chain(words).map(Into::into));
        assert!(
            matches!(parsed, Ok(Command::Lab(usher_lab::cli::Command::Load(_)))),
            "{}: {parsed:?}",
            workload.name
        );
    }
    let probe = generator::probe("127.0.0.1:9002");
    assert!(usher::cli::parse(["usher".to_owned()].into_iter().chain(probe).map(Into::into)).is_ok());
}

#[test]
fn numbers_have_three_significant_digits() {
    let texts = [
        (0.0, "0"),
        (0.000_004, "0"),
        (0.000_123, "0.00012"),
        (0.0123, "0.0123"),
        (0.5, "0.500"),
        (1.0, "1.00"),
        (12.345, "12.3"),
        (999.6, "1,000"),
        (34_000.0, "34,000"),
        (1_234_567.0, "1,234,567"),
        (-1_500.0, "-1,500"),
        (-0.25, "-0.250"),
    ];
    for (value, expected) in texts {
        assert_eq!(text::number(value), expected);
    }
    assert_eq!(text::percent(0.85), "85.0 %");
}

#[test]
fn page_shows_met_and_missed_budgets() {
    let small = workload("small-envoy");
    // The time per request is 1.7 times the limit's; latency is the same.
    let section = Section { workload: small, runs: runs([0.1; 3], [0.16, 0.17, 0.19]), failures: Vec::new() };
    let report = report(vec![section], pair());
    let page = report.markdown();
    let rows = [
        "| 200-token bodies, 500 per second, through Envoy, 10 pods | CPU per request | ≤ 1.5 × | 0.100 ms | 0.170 ms | 1.70 | **missed** |",
        "|  | added latency p99 | ≤ 1.5 × | 3.00 ms | 3.00 ms | 1.00 | yes |",
        "Usher against the limit: 1 of 2 lines of the budget are met.",
        "| CPU per request, ms | 0.100 (0.100–0.100) | 0.170 (0.160–0.190) |",
        "- Sent late, in the worst round: limit 0.500 % (p99 1.50 ms), usher 0.500 % (p99 1.50 ms).",
        "- Generator, of a core: limit 50.0 %, usher 50.0 %.",
        "![CPU per request by picker](benchmarks/small-envoy.svg)",
        "    usher load --target http://127.0.0.1:8081 --tokens 200 --rate 500 --duration 20s --warm-up 2s --pid PICKER=PID --pid envoy=PID --output json",
        "    limit --grpc-port=8082 ",
        "| processor | A processor |",
        "| commit | 0123456789ab |",
        "    make bench-wire\n",
    ];
    for row in rows {
        assert!(page.contains(row), "{row}\nis not in\n{page}");
    }
    assert!(!page.contains("A quick run"));
    assert_eq!(
        report.missed(),
        ["small-envoy: CPU per request is 0.170 ms, 1.70 × the limit's; the budget is ≤ 1.5 ×"]
    );
    assert_eq!(report.unmeasured(), [""; 0]);
}

#[test]
fn missed_load_targets_are_named_beside_the_result() {
    let table: [(fn(&mut LoadReport), &str); 3] = [
        (|load| load.requests_per_second = 480.0, "| 1.00 | yes, the rate was not reached |"),
        (|load| load.generator_cpu_share = Some(0.97), "| 1.00 | yes, the generator was at its limit |"),
        (|load| load.late.as_mut().unwrap().share = 0.3, "| 1.00 | yes, the generator was often late |"),
    ];
    for (change, row) in table {
        let mut runs = runs([0.1; 3], [0.1; 3]);
        change(&mut runs[4].load);
        let section = Section { workload: workload("small-envoy"), runs, failures: Vec::new() };
        let page = report(vec![section], pair()).markdown();
        assert!(page.contains(row), "{row}\nis not in\n{page}");
    }
}

#[test]
fn report_shows_failures_and_missing_runs() {
    let mut runs = runs([0.1; 3], [0.1; 3]);
    runs[4].load.requests.failed = 12;
    runs[4].load.errors.insert("timeout".to_owned(), 12);
    runs[4].load.reasons.insert("timeout".to_owned(), "no reply in 30 s".to_owned());
    let failure = Failure { who: LIMIT.to_owned(), round: 2, why: "limit ended".to_owned() };
    let direct = Section { workload: workload("small-direct"), runs, failures: vec![failure] };
    let none = Section { workload: workload("idle-direct"), runs: Vec::new(), failures: Vec::new() };
    let mut report = report(vec![direct, none], pair());
    report.quick = true;
    let page = report.markdown();
    for text in [
        "| 1.00 | yes, 12 requests failed, some rounds not measured |",
        "- **Round 2, usher: 12 requests failed** (timeout 12: no reply in 30 s).",
        "- **Not measured: round 2, limit: limit ended.**",
        "| memory per stream | ≤ 1.5 × | – | – | – | **not measured** |",
        "**A quick run",
    ] {
        assert!(page.contains(text), "{text}\nis not in\n{page}");
    }
    assert!(!page.contains("idle-direct.svg"));
    assert_eq!(
        report.unmeasured(),
        [
            "small-direct: round 2, limit: limit ended",
            "idle-direct: memory can't be judged",
            "idle-direct: memory per stream can't be judged",
            "idle-direct: CPU for idle streams can't be judged",
        ]
    );
}

#[test]
fn peer_has_its_own_columns() {
    let mut runs = runs([0.1; 3], [0.1; 3]);
    runs.push(run("go", 1, 1.3));
    let section = Section { workload: workload("long-direct"), runs, failures: Vec::new() };
    let mut pickers = pair();
    pickers.push(Picker::parse("go=/opt/epp --v=1").unwrap());
    let page = report(vec![section], pickers).markdown();
    for text in [
        "| limit | Usher | ratio | met | go | ratio |\n|---|---|---|--:|--:|--:|---|--:|--:|\n",
        "| CPU per request | ≤ 1.5 × | 0.100 ms | 0.100 ms | 1.00 | yes | 1.30 ms | 13.00 |",
        "| peak memory | ≤ 40 MiB + 2 × the bodies in flight = 48.0 MiB | 30.0 MiB | 30.0 MiB | 1.00 | yes |",
        "    epp --v=1 --grpc-port=8082 ",
    ] {
        assert!(page.contains(text), "{text}\nis not in\n{page}");
    }
}

#[test]
fn a_plot_has_a_bar_per_picker_and_a_point_per_round() {
    let bar = |name: &str, points: [f64; 3]| Bar {
        name: name.to_owned(),
        median: points[1],
        points: points.into(),
    };
    let bars = [bar(LIMIT, [0.1, 0.11, 0.12]), bar("a<b", [0.2, 0.25, 0.3])];
    let svg = plot::svg("small: CPU per request", "ms", &bars).unwrap();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert_eq!(svg.matches("<circle").count(), 6);
    assert_eq!(svg.matches("<rect").count(), 2, "no background: the page's is seen");
    for text in ["small: CPU per request", "limit", "a&lt;b", "0.110", "0.250", "ms"] {
        assert!(svg.contains(&format!("\n{text}\n")), "{text}\nis not in\n{svg}");
    }
    // Nothing but zeros, as an idle picker has, is drawn all the same.
    let idle = plot::svg("idle", "cores", &[bar(LIMIT, [0.0; 3])]).unwrap();
    assert_eq!(idle.matches("<circle").count(), 3);
}
