//! The configuration that runs, for metrics and for the admin port.

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::digest::{SHA256, digest};
use k8s_openapi::jiff::Timestamp;
use prometheus::{IntCounter, IntGauge, Registry};
use serde::Serialize;

use crate::metrics::register;
use crate::settings::ConfigSource;

/// Changes of the last reload that the page lists at most.
const MOST_CHANGES: usize = 100;

/// Longest text of an error on the page, in characters.
const MOST_TEXT: usize = 2000;

/// The configuration that runs, and how the last change to its file went.
#[derive(Debug)]
pub(in crate::server) struct Status {
    // Taken by a reload and by a reader of the page.
    page: Mutex<PageOf>,
    generation: IntGauge,
    last_success: IntGauge,
    current: IntGauge,
    failures: IntCounter,
}

/// The page, as it is shown.
#[derive(Debug, Serialize)]
struct PageOf {
    /// The file; `null`: it is in a flag, or built in.
    file: Option<String>,
    source: &'static str,
    sha256: String,
    generation: i64,
    /// RFC 3339.
    loaded_at: String,
    /// The file, if any, has the text that runs.
    current: bool,
    failures: u64,
    last_error: Option<Failure>,
    /// Differences from the configuration that ran before.
    last_changes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Failure {
    at: String,
    message: String,
}

/// SHA-256 of a text in hexadecimal digits, as `sha256sum` prints it.
pub(super) fn hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a string can't fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn now() -> (i64, String) {
    let now = Timestamp::now();
    let second = now.as_second();
    (second, Timestamp::from_second(second).unwrap_or(now).to_string())
}

impl Status {
    /// The configuration of the start, with its metrics registered.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub(in crate::server) fn register(
        source: &ConfigSource,
        hash: &str,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let gauge = |name, help| register(registry, IntGauge::new(name, help)?, None);
        let generation = gauge(
            "usher_config_generation",
            "Number of the configuration that runs: 1 is that of the start, and each reload adds 1.",
        )?;
        let last_success = gauge(
            "usher_config_last_success_timestamp_seconds",
            "Time at which the configuration that runs was loaded, in seconds since 1970.",
        )?;
        let current = gauge(
            "usher_config_current",
            "1 while the configuration that runs is that of its file; 0 while it is older, as the file is gone or can't be used.",
        )?;
        let failures = IntCounter::new(
            "usher_config_reload_failures_total",
            "Changes to the configuration file that were refused.",
        )?;
        let failures = register(registry, failures, None)?;
        let (second, loaded_at) = now();
        generation.set(1);
        last_success.set(second);
        current.set(1);
        let (file, source) = match source {
            ConfigSource::Default => (None, "built-in"),
            ConfigSource::Text(_) => (None, "--config-text"),
            ConfigSource::File(path) => (Some(path.display().to_string()), "--config-file"),
        };
        let page = PageOf {
            file,
            source,
            sha256: hash.to_owned(),
            generation: 1,
            loaded_at,
            current: true,
            failures: 0,
            last_error: None,
            last_changes: Vec::new(),
        };
        Ok(Self { page: Mutex::new(page), generation, last_success, current, failures })
    }

    /// Another configuration runs. Returns its number.
    pub(super) fn succeeded(&self, hash: &str, changes: &[String]) -> i64 {
        let (second, loaded_at) = now();
        let mut page = self.page();
        page.generation += 1;
        hash.clone_into(&mut page.sha256);
        page.loaded_at = loaded_at;
        (page.current, page.last_error) = (true, None);
        page.last_changes = changes.iter().take(MOST_CHANGES).cloned().collect();
        self.generation.set(page.generation);
        self.last_success.set(second);
        self.current.set(1);
        page.generation
    }

    /// The file has the text that runs, after it had another that couldn't be used.
    pub(super) fn restored(&self) {
        self.page().current = true;
        self.current.set(1);
    }

    /// The file can't be used.
    pub(super) fn failed(&self, error: &str) {
        let mut page = self.page();
        page.current = false;
        page.failures += 1;
        let (at, message) = (now().1, error.chars().take(MOST_TEXT).collect());
        page.last_error = Some(Failure { at, message });
        self.failures.inc();
        self.current.set(0);
    }

    /// The page as JSON.
    pub(in crate::server) fn json(&self) -> String {
        serde_json::to_string_pretty(&*self.page()).unwrap_or_default()
    }

    /// The page as a JSON value.
    pub(in crate::server) fn value(&self) -> serde_json::Value {
        serde_json::to_value(&*self.page()).unwrap_or_default()
    }

    fn page(&self) -> std::sync::MutexGuard<'_, PageOf> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_matches_sha256sum() {
        assert_eq!(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn an_error_stays_on_the_page_until_the_next_success() {
        let registry = Registry::new();
        let source = ConfigSource::File("epp.yaml".into());
        let status = Status::register(&source, "00", &registry).unwrap();
        let page = || -> serde_json::Value { serde_json::from_str(&status.json()).unwrap() };
        status.failed(&"é".repeat(3000));
        assert_eq!(page()["last_error"]["message"].as_str().unwrap().chars().count(), MOST_TEXT);
        status.restored();
        assert_eq!((&page()["current"], page()["last_error"].is_null()), (&true.into(), false));
        assert_eq!(status.succeeded("01", &vec!["x".to_owned(); 1000]), 2);
        let page = page();
        assert_eq!((&page["sha256"], &page["generation"]), (&"01".into(), &2.into()));
        assert!(page["last_error"].is_null());
        assert_eq!(page["last_changes"].as_array().unwrap().len(), MOST_CHANGES);
        let text = crate::metrics::render(&registry);
        for line in
            ["usher_config_generation 2", "usher_config_reload_failures_total 1", "usher_config_current 1"]
        {
            assert!(text.contains(line), "{text}");
        }
    }
}
