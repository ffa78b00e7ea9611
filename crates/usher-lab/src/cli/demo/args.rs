//! The arguments of `usher demo`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use usher_terminal::Output;

/// Servers of the scenario outlier, where none are given.
const OUTLIER_SERVERS: u16 = 10;
/// Requests while a server is broken, where none are given: ten seconds.
const OUTLIER_REQUESTS: usize = 2000;
/// Requests of autoscale, where none are given.
const AUTOSCALE_REQUESTS: usize = 300;

/// Scenario of a demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Every server does all of a request. The trace is replayed with llm-d-router's default policy and
    /// with Usher's own, and a table compares these.
    Plain,
    /// Half of the servers compute prompts and half of them decode, in two racks. The
    /// trace is replayed once for each way to pair them, and a table compares these.
    Pd,
    /// No server runs at first. Requests wait in Usher until servers come up, and a table shows for how
    /// long.
    ScaleFromZero,
    /// One of the servers responds with 503 at once for a while, under 200 small requests per
    /// second: once without outlier ejection, and once with it.
    #[value(alias = "sick-pod")]
    Outlier,
    /// No server runs at first. The load grows, stays and ends, Usher's capacity policy says how many
    /// servers there should be, and the demo starts and ends them. A table has a line whenever something
    /// changes. Takes three quarters of a minute.
    Autoscale,
    /// Requests share long beginnings, servers have little room for them, and half of them restart in the
    /// middle. A table compares the hits in prefix caches that Usher predicts with those that happen: as it
    /// estimates them, and by the KV events of the servers.
    Precise,
    /// Three replicas of Usher serve one pool, with and without a store through which they share load and
    /// prefixes, and a table compares them with one. Then one of the three is killed and comes back. Takes a
    /// minute.
    Replicas,
    /// Prefill and decode pods come up in steps where there are nodes for half of them, and
    /// a table compares that with all at once. Pods and time are virtual: nothing is started.
    Rollout,
}

/// Arguments of `usher demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Scenario to show.
    #[arg(long, value_enum, default_value_t = Scenario::Plain)]
    pub scenario: Scenario,
    /// Simulated servers. Default 8, outlier 10; with autoscale the maximum.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub servers: Option<u16>,
    /// Requests that are sent, from the start of the trace; fewer if it has fewer: 400. For
    /// outlier those while a server is broken: 2000. For autoscale in all: 300. For replicas in each run, beside
    /// bursts.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub requests: Option<usize>,
    /// Speed of the trace and of the servers, as a multiple of the real one: 12, and 1 for outlier, autoscale
    /// and replicas.
    #[arg(long, value_name = "FACTOR", value_parser = speed)]
    pub speed: Option<f64>,
    /// Port of Envoy; Usher and the servers take those that follow, and Usher's admin server 9095 if that is free.
    /// 0: any that are free.
    #[arg(long, value_name = "PORT", default_value_t = 8081)]
    pub port: u16,
    /// Go on after the replay, until Ctrl-C, for requests of your own.
    #[arg(long)]
    pub keep: bool,
    /// Folder for Envoy and for logs.
    #[arg(long, value_name = "DIR", default_value = ".demo")]
    pub dir: PathBuf,
    /// Trace to replay instead of the built-in one, in the format of Mooncake's.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Redis or Valkey through which the replicas of the scenario replicas share, as for `usher serve`. By
    /// default the demo starts the redis-server or valkey-server that is on the PATH.
    #[arg(long, value_name = "URL")]
    pub state_store: Option<String>,
    /// Format of the result.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

impl DemoArgs {
    /// Simulated servers.
    pub(super) fn servers(&self) -> u16 {
        let usual = if self.scenario == Scenario::Outlier { OUTLIER_SERVERS } else { 8 };
        self.servers.unwrap_or(usual)
    }

    /// Speed of everything, in multiples of reality.
    pub(super) fn speed(&self) -> f64 {
        let is_real = matches!(self.scenario, Scenario::Outlier | Scenario::Autoscale | Scenario::Replicas);
        let usual = if is_real { 1.0 } else { 12.0 };
        self.speed.unwrap_or(usual)
    }

    /// Requests that are sent, or those that count.
    pub(super) fn requests(&self) -> usize {
        let usual = match self.scenario {
            Scenario::Outlier => OUTLIER_REQUESTS,
            Scenario::Autoscale => AUTOSCALE_REQUESTS,
            _ => 400,
        };
        self.requests.unwrap_or(usual)
    }

    /// Name of the scenario.
    pub(super) fn name(&self) -> String {
        self.scenario.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns `true` if it sends the requests of a trace.
    pub(super) fn replays(&self) -> bool {
        !matches!(
            self.scenario,
            Scenario::Outlier | Scenario::Autoscale | Scenario::Precise | Scenario::Replicas
        )
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("give at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("{text:?} is no whole number")),
    }
}

/// Beyond these a run would take a day, or arrive all at once.
fn speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(speed) if (0.01..=1000.0).contains(&speed) => Ok(speed),
        _ => Err("give a number from 0.01 to 1000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_names_of_scenarios_are_accepted() {
        assert_eq!(Scenario::from_str("sick-pod", false), Ok(Scenario::Outlier));
        assert_eq!(Scenario::from_str("outlier", false), Ok(Scenario::Outlier));
    }
}
