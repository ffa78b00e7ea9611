//! `usher sim`.

use std::net::TcpListener;

use clap::Parser;
use serde_json::{Value, json};
use usher::cli::CliError;
use usher::sim::{Dialect, EngineConfig, Form, KvEventsConfig, Layer, ModelKind, Role, SimConfig, Target};
use usher_lab::cli::sim::{SimArgs, run, write_endpoints};

use crate::sim::support::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    sim: SimArgs,
}

fn args(line: &str) -> SimArgs {
    Cli::try_parse_from(["sim"].into_iter().chain(line.split_whitespace())).unwrap().sim
}

#[test]
fn flag_defaults_match_the_configuration_defaults() {
    assert_eq!(args("").config(), SimConfig::default());
    assert_eq!(args("--instant").config().engine, EngineConfig::instant());
    assert!(!args("--no-render").config().has_render);
    assert_eq!(args("--metrics-of trtllm-serve").config().dialect, Dialect::TrtllmServe);
    let unknown = Cli::try_parse_from(["sim", "--metrics-of", "llama"]).map(|_| ()).unwrap_err();
    assert!(unknown.to_string().contains("known are vllm, sglang"), "{unknown}");
}

#[test]
fn flags_override_the_constants_that_a_seed_draws() {
    for kind in ModelKind::ALL {
        let drawn = EngineConfig::drawn(kind, 7);
        let line = format!("--engine-model {kind} --engine-seed 7");
        assert_eq!(args(&line).config().engine, drawn);
        let engine = args(&format!("{line} --max-running 3 --num-blocks 999 --shared-link")).config().engine;
        assert_eq!(engine, EngineConfig { max_running: 3, num_blocks: 999, shared_link: true, ..drawn });
    }
    let error = run(&args("--engine-model prefill-first --decode-step 5ms --port 0")).unwrap_err();
    assert!(matches!(error, CliError::Usage(text) if text.contains("those of the model linear")));
}

#[test]
fn a_taken_port_is_named_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let line = format!("--port {port}");
    let error = run(&args(&line)).unwrap_err().to_string();
    assert_eq!(error, format!("port {port} on 127.0.0.1 is in use; choose another with --port"));
    assert!(args("--port 65535 --count 2").bind().unwrap_err().to_string().contains("65535"));
    assert!(matches!(run(&args(&line)), Err(CliError::Failed(_))));
}

#[test]
fn out_of_range_values_name_the_flag_and_the_range() {
    for (flag, value, range) in [
        ("--jitter", "2", "from 0 to below 1"),
        ("--speed", "0", "from 0.001 to 1000000"),
        ("--batch-factor", "1e300", "from 0 to 1000"),
        ("--decode-step", "48h", "from 0 to 24h"),
        ("--stream-interval", "0", "from 1 to"),
        ("--block-size", "-1", "from 1 to"),
    ] {
        let joined = format!("{flag}={value}");
        let error = Cli::try_parse_from(["sim", &joined]).map(|_| ()).unwrap_err().to_string();
        assert!([flag, value, range].iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn ports_of_events_are_as_far_apart_as_those_of_servers() {
    let ports = "--kv-events-port 5557 --kv-replay-port 5657";
    for (spread, step) in [("ports", 1), ("addresses", 0)] {
        let target = Target::Listen { port: 5557, replay_port: Some(5657), step };
        let expected = Some(KvEventsConfig { form: Form::Array, target });
        assert_eq!(args(&format!("{ports} --spread {spread}")).config().kv_events, expected);
    }
    let target = Target::Connect("epp:5557".to_owned());
    let expected = Some(KvEventsConfig { form: Form::Map, target });
    assert_eq!(args("--kv-events-to tcp://epp:5557 --kv-events-form map").config().kv_events, expected);
    for (line, part) in [
        ("--kv-events-to epp:5557", "give tcp://HOST:PORT"),
        ("--kv-events-to tcp://epp:0", "give tcp://HOST:PORT"),
        ("--kv-events-port 5557 --kv-events-to tcp://epp:5557", "cannot be used with"),
        ("--kv-replay-port 5558", "--kv-events-port"),
        ("--kv-events-form list", "give array or map"),
    ] {
        let error = Cli::try_parse_from(["sim"].into_iter().chain(line.split(' '))).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let error = run(&args(&format!("--port 0 --kv-events-port {}", at.port()))).unwrap_err().to_string();
    assert!(error.contains(&format!("can't listen on {at} for KV events: ")), "{error}");
}

#[test]
fn addresses_follow_each_other() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let line = format!("--count 3 --spread addresses --address 127.0.0.9 --port {free}");
    let bound: Vec<String> =
        args(&line).bind().unwrap().iter().map(|l| l.local_addr().unwrap().ip().to_string()).collect();
    assert_eq!(bound, ["127.0.0.9", "127.0.0.10", "127.0.0.11"]);
}

#[tokio::test]
async fn the_endpoints_file_lists_the_servers_with_ports_as_strings() {
    let name_prefix = r#"a"b\c"#.to_owned();
    let group = servers(SimConfig { name_prefix, ..SimConfig::default() }, 2).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("endpoints.yaml");
    write_endpoints(&path, &group).unwrap();
    let file: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let port = group.addresses()[1].port().to_string();
    assert_eq!(
        file["endpoints"][1],
        json!({"name": r#"a"b\c-1"#, "namespace": "default", "address": "127.0.0.1", "port": port})
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing partial is left");
}

#[tokio::test]
async fn roles_and_places_are_labels_in_the_endpoints_file() {
    let line = "--roles prefill,decode --hosts a,a,b --racks r --zones z,z,,z --count 4";
    let group = servers(args(line).config(), 4).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("endpoints.yaml");
    write_endpoints(&path, &group).unwrap();
    let file: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let (host, rack) = ("kubernetes.io/hostname", "topology.kubernetes.io/rack");
    let zone = "topology.kubernetes.io/zone";
    let labels = |server: usize| &file["endpoints"][server]["labels"];
    assert_eq!(labels(1), &json!({"llm-d.ai/role": "decode", host: "a", rack: "r", zone: "z"}));
    assert_eq!(labels(2), &json!({"llm-d.ai/role": "prefill", host: "b", rack: "r"}));
}

#[test]
fn servers_that_share_work_are_set_by_flags() {
    let line = "--roles prefill,encode --links rack=1G,none=0 --kv-bytes-per-token 7 --image-time 50ms \
                --peers 10.0.0.1,[::1]:80 --peer-timeout 2s";
    let config = args(line).config().disagg;
    assert_eq!(config.roles, [Role::Prefill, Role::Encode]);
    assert_eq!(config.links.bytes_per_second(Layer::Rack), 1_000_000_000);
    assert_eq!((config.kv_bytes_per_token, config.image_time.as_millis()), (7, 50));
    assert_eq!(config.peers, ["10.0.0.1", "[::1]:80"].map(|peer| peer.parse().unwrap()));
    assert_eq!(config.peer_timeout.as_secs(), 2);
    for (wrong, part) in
        [("--roles cook", "known are"), ("--links cage=1", "rack=50G"), ("--peers here", "10.0.0.1:8000")]
    {
        let line = ["sim"].into_iter().chain(wrong.split(' '));
        let error = Cli::try_parse_from(line).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(matches!(run(&args("--zones a/b --port 0")), Err(CliError::Usage(text)) if text.contains("a/b")));
}
