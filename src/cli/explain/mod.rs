//! `usher explain`: why a request went where it did.

mod args;
mod list;
mod offline;
mod page;
mod text;
mod units;

use std::time::Duration;

use serde::Deserialize as _;
use serde_json::Value;
use usher_terminal::{CliError, Output, width};

use crate::doctor::HttpClient;
use crate::observe::query::encoded;
use crate::registry::PluginTypes;

pub use args::ExplainArgs;
use page::{Decision, Page};
use text::Explained;

/// Path of the picker's page.
const PATH: &str = "/decisions";

/// Version of the page that is read.
const VERSION: u32 = 1;

/// Largest page, in bytes.
const MOST: usize = 16 << 20;

/// Pause between two looks at a picker that is followed.
const PAUSE: Duration = Duration::from_millis(500);

/// Queries the picker and prints its response.
///
/// # Errors
/// [`CliError::Usage`] for an invalid address; [`CliError::Failed`] if the picker doesn't respond, keeps no
/// records, or has none of the request.
pub(super) fn run(args: &ExplainArgs, types: &PluginTypes) -> Result<(), CliError> {
    if let Some(request) = &args.request {
        let raw = offline::decide(args, request, types)?;
        let text = match args.output {
            Output::Json => format!("{raw:#}\n"),
            Output::Text => {
                let decision = serde_json::from_value(raw);
                let decision = decision.map_err(|error| CliError::Failed(error.to_string()))?;
                shown(&[decision], width())
            }
        };
        return print(&text);
    }
    let picker = Picker::of(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::Failed(format!("cannot start: {error}")))?;
    if args.follow {
        return runtime.block_on(follow(args, &picker));
    }
    let (raw, page) = runtime.block_on(picker.ask(&query(args)))?;
    if page.decisions.is_empty() {
        return Err(CliError::Failed(nothing(args, &page)));
    }
    let text = match args.output {
        Output::Json => format!("{raw:#}\n"),
        Output::Text => shown(&picker.decisions(page)?, width()),
    };
    print(&text)
}

/// One decision as an explanation, several as a list; of one request all of them are explained.
fn shown(decisions: &[Decision], width: Option<usize>) -> String {
    let first = decisions.first().map(|decision| &decision.request_id).filter(|id| !id.is_empty());
    let is_one = decisions.len() == 1 || decisions.iter().all(|decision| Some(&decision.request_id) == first);
    if !is_one {
        return list::list(decisions, width);
    }
    let explained = decisions.iter().map(|decision| match width {
        Some(width) => format!("{:width$}", Explained(decision)),
        None => Explained(decision).to_string(),
    });
    explained.collect::<Vec<_>>().join("\n")
}

/// Prints decisions as their requests end, until the picker goes or nobody reads any more.
async fn follow(args: &ExplainArgs, picker: &Picker) -> Result<(), CliError> {
    let (_, page) = picker.ask("last=1").await?;
    let mut since = page.sequence;
    let selection = query(args);
    loop {
        let (_, page) = picker.ask(&format!("{selection}since={since}")).await?;
        // A picker that was started again counts from the beginning.
        if page.sequence < since {
            since = 0;
            continue;
        }
        since = page.sequence;
        let raw = page.decisions.clone();
        for (decision, raw) in picker.decisions(page)?.iter().zip(raw) {
            if decision.outcome.is_none() && decision.refusal.is_none() {
                continue;
            }
            print(&match args.output {
                Output::Json => format!("{raw}\n"),
                Output::Text => list::single(decision),
            })?;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The query for what was asked, with an `&` at its end if it is followed.
fn query(args: &ExplainArgs) -> String {
    let mut parts = Vec::new();
    let mut add = |name: &str, value: &Option<String>| {
        parts.extend(value.as_ref().map(|value| format!("{name}={}", encoded(value))));
    };
    add("id", &args.request_id);
    add("model", &args.model);
    add("endpoint", &args.endpoint);
    parts.extend(args.slow.then(|| "slow".to_owned()));
    parts.extend(args.failed.then(|| "failed".to_owned()));
    if args.follow {
        return parts.iter().map(|part| format!("{part}&")).collect();
    }
    if let Some(last) = args.last.or_else(|| args.request_id.is_none().then_some(1)) {
        parts.push(format!("last={last}"));
    }
    parts.join("&")
}

/// The sentence for a page without decisions.
fn nothing(args: &ExplainArgs, page: &Page) -> String {
    let asked = match &args.request_id {
        Some(id) => format!("no decision about request {id:?} is kept"),
        None if page.kept == 0 => "no decision has been kept yet".to_owned(),
        None => "no kept decision is like that".to_owned(),
    };
    let since = page.kept_since_unix_ms.map(|since| format!(", the oldest of {}", units::utc(since)));
    let sampled = match page.sampled_out {
        0 => String::new(),
        number => format!("; {number} were not kept, as there were too many"),
    };
    format!("{asked}; there are {} records{}{sampled}", page.kept, since.unwrap_or_default())
}

fn print(text: &str) -> Result<(), CliError> {
    usher_terminal::print(text)
        .map_err(|error| CliError::Failed(format!("cannot print the decisions: {error}")))
}

/// A picker's admin port.
struct Picker {
    site: HttpClient,
}

impl Picker {
    fn of(args: &ExplainArgs) -> Result<Self, CliError> {
        let site = HttpClient::parse_server(&args.admin);
        let site = site.map_err(|error| CliError::Usage(format!("--admin: {error}")))?;
        Ok(Self { site: site.within(args.timeout) })
    }

    async fn ask(&self, query: &str) -> Result<(Value, Page), CliError> {
        let raw = self.site.json(&format!("{PATH}?{query}"), MOST).await.map_err(|error| {
            CliError::Failed(format!(
                "{error}; give the --admin-address of a running usher serve with --admin, by default 127.0.0.1:9095"
            ))
        })?;
        let page = Page::deserialize(&raw).map_err(|error| self.strange(&error))?;
        if page.version != VERSION {
            let (version, base) = (page.version, self.site.url());
            let text = format!("{base}{PATH} has format {version}; use the usher of the picker's version");
            return Err(CliError::Failed(text));
        }
        if !page.recording {
            let text =
                "the picker keeps no records of decisions; start usher serve without --decision-records=0";
            return Err(CliError::Failed(text.to_owned()));
        }
        Ok((raw, page))
    }

    fn decisions(&self, page: Page) -> Result<Vec<Decision>, CliError> {
        let decisions = page.decisions.into_iter().map(serde_json::from_value);
        decisions.collect::<Result<_, _>>().map_err(|error| self.strange(&error))
    }

    fn strange(&self, error: &serde_json::Error) -> CliError {
        CliError::Failed(format!(
            "{}{PATH} is no page of decisions of usher serve: {error}; check the port of --admin",
            self.site.url()
        ))
    }
}

#[cfg(test)]
mod tests;
