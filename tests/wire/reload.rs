//! `--config-file` changes while gateways send requests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use futures_util::future::join_all;

use crate::support::*;

const PLAIN: &str = "
plugins: [{type: queue-scorer}, {type: prefix-cache-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: prefix-cache-scorer, weight: 3}, {pluginRef: queue-scorer}]}]
";

const OTHER: &str = "
plugins: [{type: active-request-scorer}, {type: prefix-cache-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: prefix-cache-scorer, weight: 3}, {pluginRef: active-request-scorer}]}]
";

/// Streams that are open at a time.
const GATEWAYS: usize = 8;

/// A configuration as Kubernetes mounts it: a link into a folder that is swapped as a whole.
struct Mount {
    folder: PathBuf,
    versions: usize,
}

impl Mount {
    fn new(folder: &Path, text: &str) -> Self {
        let mut mount = Self { folder: folder.join("config"), versions: 0 };
        std::fs::create_dir(&mount.folder).unwrap();
        mount.swap(text);
        std::os::unix::fs::symlink("..data/epp.yaml", mount.file()).unwrap();
        mount
    }

    fn file(&self) -> PathBuf {
        self.folder.join("epp.yaml")
    }

    fn swap(&mut self, text: &str) {
        self.versions += 1;
        let name = format!("..{}", self.versions);
        std::fs::create_dir(self.folder.join(&name)).unwrap();
        std::fs::write(self.folder.join(&name).join("epp.yaml"), text).unwrap();
        std::os::unix::fs::symlink(&name, self.folder.join("..data_tmp")).unwrap();
        std::fs::rename(self.folder.join("..data_tmp"), self.folder.join("..data")).unwrap();
    }
}

fn page(picker: &Picker) -> serde_json::Value {
    let page = Picker::get(picker.admin, "/config");
    serde_json::from_str(page.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

/// Sends a request and its response's head, and returns where it went.
async fn exchange(connection: &Connection, prompt: &str) -> String {
    let mut stream = connection.stream().await;
    stream.send(headers(&[(":path", "/v1/completions")], false));
    stream.send(body(format!(r#"{{"model":"m","prompt":"{prompt}"}}"#), true));
    let destination = stream.request_headers().await.destination().to_owned();
    stream.request_body().await;
    destination
}

#[tokio::test]
async fn no_request_fails_while_the_configuration_changes() {
    let files = tempfile::tempdir().unwrap();
    let endpoints = files.path().join("endpoints.yaml");
    let entry = |i: u8| format!("- {{name: pod-{i}, address: 127.0.0.{i}, port: '1'}}\n");
    std::fs::write(&endpoints, format!("endpoints:\n{}", (1..=4).map(entry).collect::<String>())).unwrap();
    let mut mount = Mount::new(files.path(), PLAIN);
    let flags = [
        format!("--config-file={}", mount.file().display()),
        format!("--endpoints-file={}", endpoints.display()),
    ];
    let picker = Picker::serve(files, &flags.each_ref().map(String::as_str)).await;
    let prompt = "a prompt that is long enough for a block of a cache ".repeat(60);
    let first = exchange(&picker.connect().await, &prompt).await;
    let (done, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let gateway = async |number: usize| {
        let connection = picker.connect().await;
        while !done.load(Relaxed) {
            exchange(&connection, &format!("{number} {}", sent.fetch_add(1, Relaxed))).await;
        }
    };
    let operator = async {
        let mut generation = 1;
        for (text, says) in [
            (OTHER, None),
            ("plugins: [", Some("epp.yaml")),
            (PLAIN, None),
            ("", Some("is empty")),
            (OTHER, None),
        ] {
            let (before, failures) = (sent.load(Relaxed), page(&picker)["failures"].as_u64().unwrap());
            mount.swap(text);
            generation += u64::from(says.is_none());
            let wanted = |page: &serde_json::Value| match says {
                None => page["generation"] == generation && page["last_error"].is_null(),
                Some(_) => page["failures"] == failures + 1,
            };
            while !wanted(&page(&picker)) {
                tokio::task::yield_now().await;
            }
            let error = page(&picker)["last_error"]["message"].as_str().unwrap_or_default().to_owned();
            assert!(error.contains(says.unwrap_or_default()), "{error}");
            while sent.load(Relaxed) < before + GATEWAYS {
                tokio::task::yield_now().await;
            }
        }
        done.store(true, Relaxed);
        generation
    };
    let (_, generation) = futures_util::join!(join_all((0..GATEWAYS).map(gateway)), operator);
    assert_eq!(picker.metric("usher_config_generation"), Some(generation as f64));
    assert_eq!(picker.metric("usher_config_reload_failures_total"), Some(2.0));
    assert_eq!(picker.metric("usher_config_current"), Some(1.0));
    let rejected = "llm_d_epp_scheduler_attempts_total{endpoint_name=\"\",namespace=\"\",port=\"\",status=\"failure\",target_model_name=\"m\"}";
    assert_eq!(picker.metric(rejected), None);
    let again = exchange(&picker.connect().await, &prompt).await;
    assert_eq!(again, first, "what was learned before is known");
    while picker.in_flight() != 0 {
        tokio::task::yield_now().await;
    }
}
