//! `usher capacity simulate`: what a policy does with a timeline.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, json};

use super::policies::read_one;
use crate::capacity::policy::{Policy, Sizing};
use crate::capacity::rollout::Placement;
use crate::capacity::timeline::{Tick, parse};
use crate::capacity::{Change, History, Plan, State, tick};
use crate::config::source::unreadable;
use usher_terminal::{CliError, Output};

/// Longest line of a timeline, in bytes: some 300,000 endpoints.
const MOST_BYTES: u64 = 64 << 20;

#[derive(Args, Clone, Debug)]
pub(super) struct SimulateArgs {
    /// The policy
    #[arg(long)]
    policy: PathBuf,
    /// Which policy of the file, where it has several
    #[arg(long)]
    name: Option<String>,
    /// States of the group, a JSON object per line and tick; - reads standard input
    #[arg(long)]
    timeline: PathBuf,
    /// How to print plans
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn run(args: &SimulateArgs) -> Result<(), CliError> {
    let policy = read_one(&args.policy, args.name.as_deref())?;
    let is_stdin = args.timeline.as_os_str() == "-";
    let name = if is_stdin { "<stdin>".to_owned() } else { args.timeline.display().to_string() };
    let input: Box<dyn BufRead> = if is_stdin {
        Box::new(BufReader::new(io::stdin()))
    } else {
        let opened = File::open(&args.timeline);
        let file = opened.map_err(|error| CliError::Usage(unreadable("timeline", &error).in_file(&name)))?;
        Box::new(BufReader::new(file))
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let result = simulate(&policy, input, &name, args.output, &mut out);
    // What came before a broken line is worth reading.
    let flushed = out.flush().map_err(|error| cannot_print(&error));
    result.and(flushed)
}

fn cannot_print(error: &io::Error) -> CliError {
    CliError::Failed(format!("cannot print the result: {error}"))
}

fn simulate(
    policy: &Policy,
    mut input: impl BufRead,
    name: &str,
    output: Output,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let (history, fired) = (History::default(), BTreeMap::new());
    let mut run =
        Run { policy, history, fired, last: None, state: None, changes: Vec::new(), placement: None };
    let (mut number, mut line) = (0u64, String::new());
    if output == Output::Text {
        out.write_all(heading(policy).as_bytes()).map_err(|error| cannot_print(&error))?;
    }
    loop {
        number += 1;
        line.clear();
        let broken = |what: String| CliError::Failed(format!("{name}: line {number}: {what}"));
        let read = io::Read::take(&mut input, MOST_BYTES).read_line(&mut line);
        let read = read.map_err(|error| broken(unreadable("timeline", &error).to_string()))?;
        if read == 0 {
            break;
        }
        if read as u64 == MOST_BYTES {
            return Err(broken(format!("is longer than {MOST_BYTES} bytes")));
        }
        if line.trim().is_empty() {
            continue;
        }
        let tick = parse(&line, policy).map_err(broken)?;
        let text = run.step(tick, output).map_err(broken)?;
        out.write_all(text.as_bytes()).map_err(|error| cannot_print(&error))?;
    }
    match run.last {
        Some(_) => Ok(()),
        None => Err(CliError::Failed(format!("{name}: there is no tick in it"))),
    }
}

struct Run<'a> {
    policy: &'a Policy,
    history: History,
    /// The last tick's time, and what it would have written.
    last: Option<(Duration, Vec<u32>)>,
    /// When rules fired last, by place, as the status has it.
    fired: BTreeMap<usize, Duration>,
    /// The state and the goals of the last plan, as the status has them.
    state: Option<(State, Vec<u32>)>,
    /// Changes of the roles that are under way, as the status has them.
    changes: Vec<Change>,
    /// Domain of the pods of the last step.
    placement: Option<Placement>,
}

impl Run<'_> {
    /// Another replica leads: it knows of the ticks before what the policy's status says.
    fn restart(&mut self, line: &Tick) {
        let size = line.inputs.replicas.iter().fold(0, |sum: u32, role| sum.saturating_add(*role));
        self.history = History::resumed(size, line.at);
        if let Some((state, goals)) = &self.state {
            self.history.rollout.resume(*state, goals);
        }
        self.history.resume_changes(self.changes.clone());
        for (rule, at) in &self.fired {
            self.history.resume_rule(*rule, line.at.saturating_sub(*at), line.at);
        }
    }

    fn step(&mut self, mut line: Tick, output: Output) -> Result<String, String> {
        match &self.last {
            Some((before, _)) if line.at < *before => {
                return Err(format!("t goes back from {} to {}", before.as_secs_f64(), line.t));
            }
            // What was planned is taken as applied.
            Some((_, desired)) if !line.has_replicas => line.inputs.replicas.clone_from(desired),
            None if !line.has_replicas => return Err("the first tick has to say its replicas".to_owned()),
            _ => {}
        }
        if line.is_restart {
            self.restart(&line);
        }
        let plan = tick(&line.inputs, self.policy, &mut self.history, line.at);
        self.last = Some((line.at, plan.roles.iter().map(|role| role.write).collect()));
        self.state = Some((plan.state, plan.roles.iter().map(|role| role.desired).collect()));
        self.changes = self.history.changes().to_vec();
        if let Sizing::Rules(rules) = &self.policy.sizing {
            let fired = rules.iter().enumerate().filter(|(_, rule)| plan.fired.contains(&rule.name));
            self.fired.extend(fired.map(|(place, _)| (place, line.at)));
        }
        let is_placed = plan.placement.is_some() && plan.placement != self.placement;
        self.placement.clone_from(&plan.placement);
        Ok(match output {
            Output::Json => as_json(&line, &plan),
            Output::Text => as_text(&line, &plan, is_placed),
        })
    }
}

fn as_json(line: &Tick, plan: &Plan) -> String {
    let roles: Map<_, _> = plan
        .roles
        .iter()
        .map(|role| {
            let value = json!({
                "current": role.current,
                "desired": role.desired,
                "admitted": role.admitted,
                "partition": role.partition,
                "layer": role.layer,
                "reasons": role.reasons,
            });
            (role.name.clone(), value)
        })
        .collect();
    let mut value = json!({
        "t": line.t,
        "roles": roles,
        "total": plan.total,
        "state": plan.state,
        "conditions": plan.conditions,
        "fired": plan.fired,
    });
    if let Some(message) = plan.shortfall() {
        value["message"] = message.into();
    }
    format!("{value}\n")
}

/// Width of a role's column.
fn width(name: &str) -> usize {
    name.chars().count().max(14) + 2
}

fn heading(policy: &Policy) -> String {
    let roles: String =
        policy.roles.iter().map(|role| format!("{:>1$}", role.name, width(&role.name))).collect();
    format!("{:>8}{roles}{:>7}  {:<8}why\n", "t", "total", "state")
}

fn as_text(line: &Tick, plan: &Plan, is_placed: bool) -> String {
    let mut text = format!("{:>8}", line.t.to_string());
    for role in &plan.roles {
        let mut change = role.current.to_string();
        if role.admitted != role.current {
            let _ = write!(change, " → {}", role.admitted);
        }
        if role.desired != role.admitted {
            let _ = write!(change, " of {}", role.desired);
        }
        let _ = write!(text, "{change:>0$}", width(&role.name));
    }
    let _ = write!(text, "{:>7}  {:<8}", plan.total, plan.state.to_string());
    let mut why: Vec<String> = plan.conditions.iter().map(|condition| format!("{condition:?}!")).collect();
    why.extend(plan.fired.iter().cloned());
    let is_same = plan.roles.windows(2).all(|pair| pair[0].reasons == pair[1].reasons);
    for role in plan.roles.iter().take(if is_same { 1 } else { plan.roles.len() }) {
        let reasons: Vec<String> = role.reasons.iter().map(|reason| format!("{reason:?}")).collect();
        if reasons.is_empty() {
            continue;
        }
        let reasons = reasons.join(", ");
        why.push(if is_same { reasons } else { format!("{}: {reasons}", role.name) });
    }
    if let Some(placement) = plan.placement.as_ref().filter(|_| is_placed) {
        why.push(format!("to {}={}", placement.layer, placement.domain));
    }
    why.extend(plan.shortfall());
    let _ = writeln!(text, "{}", why.join("; "));
    text
}
