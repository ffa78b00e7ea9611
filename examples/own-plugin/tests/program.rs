//! The plugin where it is to be used: in `check` and in `serve`.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};
use usher::cli::Command::Serve;
use usher::extproc::listen::Listeners;
use usher::extproc::stop::{Stop, StopSignals};
use usher::load::body::Style;
use usher::load::decide::Asker;
use usher::load::settings::{Api, TlsMode};
use usher::load::trace::Row;

const CONFIG: &str = "plugins: [{type: example.com/power-scorer, parameters: {label: gpu}}]\n";

const ENDPOINTS: &str = "endpoints:
- {name: small, address: 127.0.0.1, port: '8001', labels: {gpu: '1'}}
- {name: large, address: 127.0.0.1, port: '8002', labels: {gpu: '4'}}
";

fn check(config: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_own-plugin")).arg("check").arg(config).output().unwrap()
}

#[test]
fn check_accepts_the_plugin() {
    let files = tempfile::tempdir().unwrap();
    let config = files.path().join("config.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    let output = check(&config);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("example.com/power-scorer"), "{text}");
    std::fs::write(&config, CONFIG.replace("label", "lable")).unwrap();
    let output = check(&config);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("config.yaml:1:") && error.contains("lable"), "{error}");
}

#[test]
fn serve_picks_by_the_plugin() {
    let files = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = files.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let config = format!("--config-file={}", file("config.yaml", CONFIG));
    let endpoints = format!("--endpoints-file={}", file("endpoints.yaml", ENDPOINTS));
    let flags = ["--secure-serving=false", "--worker-threads=1", "--drain-timeout=0"];
    let arguments = ["own-plugin", "serve", &config, &endpoints].into_iter().chain(flags);
    let Serve(arguments) = usher::cli::parse(arguments.map(Into::into)).unwrap() else { panic!("not serve") };
    let settings = arguments.settings(Default::default()).unwrap();
    let setup = usher::Setup::with_plugins(settings, &own_plugin::types().unwrap()).unwrap();

    let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
    let listeners = Listeners { extproc: bind(), health: bind(), metrics: bind(), admin: None, keda: None };
    let address = listeners.extproc.local_addr().unwrap().to_string();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let decided = LocalSet::new().block_on(&runtime, async {
        let (stopper, stops) = StopSignals::channel();
        let server = spawn_local(usher::run(setup, listeners, stops));
        let style = Style { api: Api::Chat, model: "m".to_owned(), stream: false };
        let asker = Asker::connect(&address, TlsMode::Off, style, &[]).await.unwrap();
        let row = Row { timestamp: 0, input_length: 100, output_length: 1, hash_ids: vec![1] };
        let mut decided = Vec::new();
        for number in 0..10 {
            decided.push(asker.ask(number, &row).await.unwrap().destination);
        }
        drop(asker);
        stopper.stop(Stop::Now);
        let _ = server.await.unwrap();
        decided
    });
    assert_eq!(decided, ["127.0.0.1:8002"; 10]);
}
