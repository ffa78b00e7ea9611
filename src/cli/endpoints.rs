//! `usher endpoints`: what a running picker knows of its endpoints.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use usher_terminal::{CliError, Column, Output, table, width};

use crate::cli::timeout::response_timeout;
use crate::doctor::HttpClient;

/// Path of the picker's page.
const PAGE: &str = "/endpoints";

/// Largest page, in bytes: some 50,000 endpoints.
const MOST: usize = 64 << 20;

/// Shows the endpoints of a running picker, with their load and their health.
#[derive(Args, Clone, Debug)]
pub struct EndpointsArgs {
    /// Admin port of the picker, or its HOST:PORT
    #[arg(long, alias = "admin-address", value_name = "URL", default_value = "http://127.0.0.1:9095")]
    pub admin: String,
    /// Time for the response
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = response_timeout)]
    pub timeout: Duration,
    /// Format of the result. json is the page of the admin port
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

#[derive(Deserialize)]
struct Page {
    endpoints: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    id: String,
    address: String,
    in_flight: i64,
    waiting: Option<Reading>,
    running: Option<Reading>,
    kv_usage: Option<Reading>,
    scrapes: Scrapes,
    health: Health,
}

#[derive(Clone, Copy, Deserialize)]
struct Reading {
    value: f64,
    age_ms: u64,
}

#[derive(Deserialize)]
struct Scrapes {
    failing_for_ms: Option<u64>,
}

#[derive(Deserialize)]
struct Health {
    #[serde(alias = "demoted")]
    ejected: bool,
    reason: Option<String>,
}

/// Queries the picker and prints its response.
///
/// # Errors
/// [`CliError::Usage`] for an invalid address; [`CliError::Failed`] if the picker doesn't respond, or not
/// with its endpoints.
pub(super) fn run(args: &EndpointsArgs) -> Result<(), CliError> {
    let site = HttpClient::parse_server(&args.admin)
        .map_err(|error| CliError::Usage(format!("--admin: {error}")))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::Failed(format!("cannot start: {error}")))?;
    let site = site.within(args.timeout);
    let page = runtime.block_on(site.json(PAGE, MOST)).map_err(|error| {
        CliError::Failed(format!(
            "{error}; give the --admin-address of a running usher serve with --admin, by default 127.0.0.1:9095"
        ))
    })?;
    let text = match args.output {
        Output::Json => format!("{page:#}\n"),
        Output::Text => shown(page, width()).map_err(|error| {
            CliError::Failed(format!(
                "{}{PAGE} is no page of usher serve: {error}; check the port of --admin",
                site.url()
            ))
        })?,
    };
    usher_terminal::print(&text)
        .map_err(|error| CliError::Failed(format!("cannot print the endpoints: {error}")))
}

/// The page as a table of so many columns.
fn shown(page: Value, width: Option<usize>) -> serde_json::Result<String> {
    let page: Page = serde_json::from_value(page)?;
    if page.endpoints.is_empty() {
        return Ok("no endpoints\n".to_owned());
    }
    let heading = ["endpoint", "address", "in flight", "waiting", "running", "KV cache", "read", "state"];
    let rows: Vec<_> = page.endpoints.iter().map(Row::cells).collect();
    Ok(table(&heading.map(Column::text), &rows, width))
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let shown = |reading: Option<Reading>| reading.map_or("-".to_owned(), |read| read.value.to_string());
        let usage = self.kv_usage.map_or("-".to_owned(), |read| format!("{:.0} %", read.value * 100.0));
        let readings = [self.waiting, self.running, self.kv_usage];
        let oldest = readings.iter().flatten().map(|reading| reading.age_ms).max();
        vec![
            self.id.clone(),
            self.address.clone(),
            self.in_flight.to_string(),
            shown(self.waiting),
            shown(self.running),
            usage,
            oldest.map_or("never".to_owned(), |age| format!("{} ago", time(age))),
            self.state(),
        ]
    }

    fn state(&self) -> String {
        let Health { ejected, reason } = &self.health;
        match (ejected, self.scrapes.failing_for_ms) {
            (true, _) => format!("ejected: {}", reason.as_deref().unwrap_or("it fails")),
            (false, Some(failing)) => format!("not scraped for {}", time(failing)),
            (false, None) => "ok".to_owned(),
        }
    }
}

/// A time, in the unit that suits it.
fn time(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..120_000 => format!("{} s", ms / 1000),
        _ => format!("{} min", ms / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page() -> Value {
        let read = |value: f64| json!({"value": value, "age_ms": 40});
        let scraped = json!({"failures_in_a_row": 0, "failing_for_ms": null});
        json!({"generation": 3, "endpoints": [
            {
                "id": "default/a", "address": "10.0.0.1:8000", "in_flight": 2, "waiting": read(0.0), "running": read(3.0),
                "kv_usage": read(0.421), "scrapes": scraped, "health": {"ejected": false, "failures_in_a_row": 0},
            },
            {
                "id": "default/b", "address": "10.0.0.2:8000", "in_flight": 0, "waiting": null, "running": null,
                "kv_usage": null, "scrapes": {"failing_for_ms": 65_000}, "health": {"ejected": false},
            },
            {
                "id": "default/c", "address": "10.0.0.3:8000", "in_flight": 0, "waiting": read(1.0), "running": read(0.0),
                "kv_usage": read(0.0), "scrapes": scraped, "health": {"ejected": true, "reason": "3 failed requests"},
            },
        ]})
    }

    #[test]
    fn the_page_becomes_a_table() {
        let expected = "\
endpoint   address        in flight  waiting  running  KV cache  read       state
default/a  10.0.0.1:8000  2          0        3        42 %      40 ms ago  ok
default/b  10.0.0.2:8000  0          -        -        -         never      not scraped for 65 s
default/c  10.0.0.3:8000  0          1        0        0 %       40 ms ago  ejected: 3 failed requests
";
        assert_eq!(shown(page(), None).unwrap(), expected);
        let narrow = shown(page(), Some(40)).unwrap();
        assert!(narrow.starts_with("default/a\n  address 10.0.0.1:8000, in flight 2,\n"), "{narrow}");
        for width in [40, 60, 80, 100] {
            let text = shown(page(), Some(width)).unwrap();
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        }
    }

    #[test]
    fn foreign_page_is_an_error_and_an_empty_pool_is_not() {
        assert!(shown(json!({"status": "up"}), None).is_err());
        assert_eq!(shown(json!({"endpoints": []}), None).unwrap(), "no endpoints\n");
    }

    #[test]
    fn times_have_a_fitting_unit() {
        assert_eq!([999, 1000, 119_999, 120_000].map(time), ["999 ms", "1 s", "119 s", "2 min"]);
    }
}
