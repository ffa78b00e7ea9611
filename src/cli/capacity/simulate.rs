//! `usher capacity simulate`: what a policy does with a timeline.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, json};

use super::policies::read_one;
use crate::capacity::legend::meanings;
use crate::capacity::policy::{Policy, Sizing};
use crate::capacity::rollout::Placement;
use crate::capacity::timeline::{Tick, parse};
use crate::capacity::{Change, Condition, History, Plan, Reason, State, tick};
use crate::config::source::unreadable;
use usher_terminal::{CliError, Column, Output, table, terms, width};

/// Longest line of a timeline, in bytes: some 300,000 endpoints.
const MOST_BYTES: u64 = 64 << 20;

#[derive(Args, Clone, Debug)]
pub(super) struct SimulateArgs {
    /// The policy
    #[arg(long)]
    policy: PathBuf,
    /// Name of the policy, if the file has several
    #[arg(long)]
    name: Option<String>,
    /// States of the group, a JSON object per line and tick; - reads standard input
    #[arg(long)]
    timeline: PathBuf,
    /// Format of the plans
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
    let mut shown = Shown::default();
    let result = tick_all(&mut run, &mut input, name, |line, plan, is_placed| match output {
        Output::Json => out.write_all(as_json(line, plan).as_bytes()).map_err(|error| cannot_print(&error)),
        Output::Text => {
            shown.add(line, plan, is_placed);
            Ok(())
        }
    });
    if !shown.rows.is_empty() {
        // What came before a broken line is worth reading.
        let text = shown.text(policy, width());
        out.write_all(text.as_bytes()).map_err(|error| cannot_print(&error))?;
    }
    result
}

/// Reads all lines, and gives each tick to `each` with its plan and whether it names a place that the last did not.
fn tick_all(
    run: &mut Run<'_>,
    input: &mut impl BufRead,
    name: &str,
    mut each: impl FnMut(&Tick, &Plan, bool) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let (mut number, mut line) = (0u64, String::new());
    loop {
        number += 1;
        line.clear();
        let broken = |what: String| CliError::Failed(format!("{name}: line {number}: {what}"));
        let read = io::Read::take(&mut *input, MOST_BYTES).read_line(&mut line);
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
        let mut tick = parse(&line, run.policy).map_err(broken)?;
        let (plan, is_placed) = run.step(&mut tick).map_err(broken)?;
        each(&tick, &plan, is_placed)?;
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
    /// Time at which rules fired last, by place, as the status has it.
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

    /// The plan of a tick, and whether its place is another than that of the last.
    fn step(&mut self, line: &mut Tick) -> Result<(Plan, bool), String> {
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
            self.restart(line);
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
        Ok((plan, is_placed))
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

/// Ticks as they are shown: equal ones that follow each other are one row.
#[derive(Default)]
struct Shown {
    /// Time and number of the ticks, and what the plan says.
    rows: Vec<(String, u64, Vec<String>)>,
    conditions: BTreeSet<Condition>,
    reasons: BTreeSet<Reason>,
}

impl Shown {
    fn add(&mut self, line: &Tick, plan: &Plan, is_placed: bool) {
        self.conditions.extend(&plan.conditions);
        self.reasons.extend(plan.roles.iter().flat_map(|role| &role.reasons));
        let cells = cells(plan, is_placed);
        match self.rows.last_mut().filter(|(.., last)| *last == cells) {
            Some((_, count, _)) => *count += 1,
            None => self.rows.push((line.t.to_string(), 1, cells)),
        }
    }

    /// The rows, and what the codes in them mean.
    fn text(&self, policy: &Policy, width: Option<usize>) -> String {
        let start = [Column::number("t"), Column::text("")];
        let roles = policy.roles.iter().map(|role| Column::number(&role.name));
        let end = [Column::number("total"), Column::text("state"), Column::text("why")];
        let columns: Vec<Column<'_>> = start.into_iter().chain(roles).chain(end).collect();
        let row = |(t, count, cells): &(String, u64, Vec<String>)| {
            let repeated = if *count > 1 { format!("× {count}") } else { String::new() };
            [t.clone(), repeated].into_iter().chain(cells.iter().cloned()).collect()
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(row).collect();
        let mut text = table(&columns, &rows, width);
        let (conditions, reasons) = (meanings::<Condition>(), meanings::<Reason>());
        let conditions = self.conditions.iter().map(|condition| {
            let name = format!("{condition:?}");
            (format!("{name}!"), conditions.get(&name).cloned().unwrap_or_default())
        });
        let reasons = self.reasons.iter().map(|reason| {
            let name = format!("{reason:?}");
            (name.clone(), reasons.get(&name).cloned().unwrap_or_default())
        });
        let legend: Vec<(String, String)> = conditions.chain(reasons).collect();
        if !legend.is_empty() {
            let _ = write!(text, "\n{}", terms(&legend, width));
        }
        text
    }
}

/// Sizes of each role and of all in a plan, with the reasons.
fn cells(plan: &Plan, is_placed: bool) -> Vec<String> {
    let mut cells = Vec::new();
    for role in &plan.roles {
        let mut change = role.current.to_string();
        if role.admitted != role.current {
            let _ = write!(change, " → {}", role.admitted);
        }
        if role.desired != role.admitted {
            let _ = write!(change, " of {}", role.desired);
        }
        cells.push(change);
    }
    cells.extend([plan.total.to_string(), plan.state.to_string(), why(plan, is_placed)]);
    cells
}

fn why(plan: &Plan, is_placed: bool) -> String {
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
    why.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_fits_the_terminal() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let policy = read_one(&file.join("deploy/capacity/pd-topology.yaml"), None).unwrap();
        let timeline = include_str!("../../../tests/data/capacity/scarce.jsonl");
        let (history, fired) = (History::default(), BTreeMap::new());
        let mut run = Run {
            policy: &policy,
            history,
            fired,
            last: None,
            state: None,
            changes: Vec::new(),
            placement: None,
        };
        let mut shown = Shown::default();
        let all = tick_all(&mut run, &mut timeline.as_bytes(), "x", |line, plan, is_placed| {
            shown.add(line, plan, is_placed);
            Ok(())
        });
        assert!(all.is_ok());
        for width in [60, 80, 100] {
            let text = shown.text(&policy, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
        }
        let text = shown.text(&policy, None);
        let tables = text.lines().take_while(|line| !line.is_empty()).count();
        assert!(tables < timeline.lines().count() + 1 && text.contains(" × 2 "), "{text}");
        assert!(text.contains("\nHeld "), "{text}");
    }
}
