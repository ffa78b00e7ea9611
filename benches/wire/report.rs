//! `docs/contributing/benchmarks.md`, from what was measured.

use std::fmt::Write as _;

use super::generator::{self, Times};
use super::machine::Machine;
use super::metric::{ENVOY, Metric, Run};
use super::pickers::{self, LIMIT, Picker, Place, USHER};
use super::plot::Bar;
use super::processes;
use super::text::{number, percent, with_unit};
use super::verdict::{Summary, Verdict, summary, values};
use super::workloads::{Bound, Check, Way, Workload};

/// Share of a core from which the generator may be what is measured.
const GENERATOR_BUSY: f64 = 0.95;

/// Share of the rate that has to be reached.
const RATE_REACHED: f64 = 0.98;

/// Share of requests from which their lateness is worth a word beside a result.
const OFTEN_LATE: f64 = 0.1;

/// Results of all workloads, and how they were measured.
#[derive(Debug)]
pub struct Report {
    /// On what.
    pub machine: Machine,
    /// The command that measured it.
    pub command: String,
    /// Rounds per workload.
    pub rounds: usize,
    /// `true` if times were shortened, so that numbers mean little.
    pub quick: bool,
    /// Pickers that were compared. The limit first, then Usher.
    pub pickers: Vec<Picker>,
    /// Names and ports for the commands that are shown.
    pub place: Place,
    /// In the order of the table.
    pub sections: Vec<Section>,
}

/// The runs of a workload.
#[derive(Debug)]
pub struct Section {
    /// The workload.
    pub workload: &'static Workload,
    /// Runs that were measured.
    pub runs: Vec<Run>,
    /// Runs that could not be measured, and why.
    pub failures: Vec<Failure>,
}

/// A run that could not be measured.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The picker, or what else ran.
    pub who: String,
    /// Number of the round, from 1.
    pub round: usize,
    /// One line.
    pub why: String,
}

impl Section {
    /// Judges one check for a picker.
    pub fn verdict(&self, check: &Check, picker: &str) -> Verdict {
        Verdict::of(check, LIMIT, picker, &self.runs)
    }

    /// Deviation from the intended load in a round of the limit or of Usher; `None` if there was none.
    fn doubt(&self) -> Option<String> {
        let runs = || self.runs.iter().filter(|run| [LIMIT, USHER].contains(&run.picker.as_str()));
        let busy = runs().any(|run| run.load.generator_cpu_share.is_some_and(|share| share > GENERATOR_BUSY));
        let rate = self.workload.rate();
        let short =
            rate.is_some_and(|rate| runs().any(|run| run.load.requests_per_second < RATE_REACHED * rate));
        let late = runs().any(|run| run.load.late.as_ref().is_some_and(|late| late.share > OFTEN_LATE));
        let doubt = match (short, busy, late) {
            (true, _, _) => "the rate was not reached",
            (_, true, _) => "the generator was at its limit",
            (_, _, true) => "the generator was often late",
            _ => return None,
        };
        Some(doubt.to_owned())
    }

    /// Failed requests of all rounds.
    fn failed(&self, picker: &str) -> u64 {
        self.runs.iter().filter(|run| run.picker == picker).map(|run| run.load.requests.failed).sum()
    }
}

impl Report {
    /// The lines of the budget that Usher misses, for people.
    pub fn missed(&self) -> Vec<String> {
        self.checks()
            .filter_map(|(section, check)| {
                let verdict = section.verdict(check, USHER);
                let value = verdict.value.filter(|_| verdict.met == Some(false))?;
                let (name, unit) = (check.metric.name(), check.metric.unit());
                let budget = budget(check, verdict.allowed);
                let value = with_unit(value.median, unit);
                Some(format!(
                    "{}: {name} is {value}{}; the budget is {budget}",
                    section.workload.name,
                    times(verdict.ratio)
                ))
            })
            .collect()
    }

    /// Runs that could not be measured and checks that can't be judged, for people.
    pub fn unmeasured(&self) -> Vec<String> {
        let runs = self.sections.iter().flat_map(|section| {
            section.failures.iter().map(|failure| format!("{}: {failure}", section.workload.name))
        });
        let checks = self.checks().filter_map(|(section, check)| {
            let none = section.verdict(check, USHER).met.is_none() && section.failures.is_empty();
            none.then(|| format!("{}: {} can't be judged", section.workload.name, check.metric.name()))
        });
        runs.chain(checks).collect()
    }

    fn checks(&self) -> impl Iterator<Item = (&Section, &'static Check)> {
        self.sections
            .iter()
            .flat_map(|section| section.workload.checks.iter().map(move |check| (section, check)))
    }

    /// The pickers beside the limit and Usher.
    fn peers(&self) -> impl Iterator<Item = &str> {
        self.pickers.iter().map(|picker| picker.name.as_str()).filter(|name| ![LIMIT, USHER].contains(name))
    }

    /// The page. Writing to a String can't fail.
    pub fn markdown(&self) -> String {
        let mut page = String::from("# Benchmarks\n\n");
        page += "Written by `make bench-wire`. Don't edit: run it again.\n\n";
        page += "`make bench-live` measures something else: whether [`usher replay`](../guide/replay.md#is-it-true) tells \
                 what happens.\n\n";
        if self.quick {
            page += "**A quick run, to see whether everything works. Its numbers mean little.**\n\n";
        }
        self.results(&mut page);
        self.method(&mut page);
        self.setting(&mut page);
        for section in &self.sections {
            self.section(&mut page, section);
        }
        page
    }

    fn results(&self, page: &mut String) {
        let _ = writeln!(page, "## Results\n");
        let judged = self.checks().count();
        let met =
            self.checks().filter(|(section, check)| section.verdict(check, USHER).met == Some(true)).count();
        let _ = writeln!(
            page,
            "Usher against the limit: {met} of {judged} lines of the budget are met. Medians of {}; the ratio is \
             Usher's median divided by the limit's.\n",
            rounds(self.rounds)
        );
        let mut head = "| workload | measured | budget | limit | Usher | ratio | met |".to_owned();
        let mut rule = "|---|---|---|--:|--:|--:|---|".to_owned();
        for peer in self.peers() {
            let _ = write!(head, " {peer} | ratio |");
            rule += "--:|--:|";
        }
        let _ = writeln!(page, "{head}\n{rule}");
        let mut before = "";
        for (section, check) in self.checks() {
            let (metric, verdict) = (check.metric, section.verdict(check, USHER));
            // Only the first line of a workload names it.
            let title = if section.workload.title == before { "" } else { section.workload.title };
            before = section.workload.title;
            let value = |summary: Option<Summary>| {
                summary.map_or_else(|| "–".to_owned(), |value| with_unit(value.median, metric.unit()))
            };
            let _ = write!(
                page,
                "| {} | {} | {} | {} | {} | {} | {} |",
                title,
                metric.name(),
                budget(check, verdict.allowed),
                value(verdict.limit),
                value(verdict.value),
                ratio(verdict.ratio),
                met_text(section, verdict.met),
            );
            for peer in self.peers() {
                let verdict = section.verdict(check, peer);
                let _ = write!(page, " {} | {} |", value(verdict.value), ratio(verdict.ratio));
            }
            page.push('\n');
        }
        page.push('\n');
    }

    fn method(&self, page: &mut String) {
        *page += "\
## How it is measured

The limit is a server in the same stack as Usher that receives, sends back and always names the same endpoint. It
parses, scrapes and decides nothing.

- Every run has a fresh picker, and a fresh Envoy where there is one. The servers are simulated and respond at once.
  The picker knows two of them, or as many as the workload says. Everything, the generator too, runs on this machine,
  over loopback, without TLS.
- Rounds alternate: the limit first, then last, and so on. Tables have medians, and in brackets the lowest and the
  highest of the rounds.
- Direct: the generator speaks ext_proc to the picker, over one connection until that has as many streams as the picker
  allows, and then over another, as Envoy does.
- CPU is that of all threads of the picker over the measured time, with the scraping of the servers every 50 ms, which
  the limit doesn't do. Where the rate is given, a second line has the CPU without that of the same process before
  there was any request; so has that of idle streams.
- Memory is resident memory.
- Latency counts from when a request was due. Through Envoy it is that of the whole request, direct that of the
  decision.
- Added latency is a percentile through Envoy less the same percentile straight to a server, under the same load in the
  same round.
- Each workload says how many requests the generator sent late, what it used of a core at most, and how many requests
  failed.

";
    }

    fn setting(&self, page: &mut String) {
        let machine = &self.machine;
        let _ = writeln!(page, "## Machine and commands\n\n| | |\n|---|---|");
        let memory = format!("{} GiB", number(machine.memory_gib));
        let cores = machine.cores.to_string();
        let rows = [
            ("processor", machine.cpu.as_str()),
            ("cores", &cores),
            ("memory", &memory),
            ("Linux", &machine.kernel),
            ("compiler", &machine.rustc),
            ("Envoy", &machine.envoy),
            ("commit", &machine.commit),
            ("day", &machine.day),
        ];
        for (name, value) in rows {
            let _ = writeln!(page, "| {name} | {value} |");
        }
        let _ = writeln!(page, "\nTo measure it again:\n\n    {}\n", self.command);
        let _ = writeln!(page, "What it starts, here with the usual ports instead of free ones:\n");
        let _ = writeln!(page, "    {}", pickers::servers(&self.place).join(" "));
        for picker in &self.pickers {
            let _ = writeln!(page, "    {}", picker.shown(&self.place));
        }
        let _ = writeln!(
            page,
            "    {}\n",
            processes::envoy(&self.place.envoy, &self.place.envoy_config, 1).join(" ")
        );
        *page += "\
`config.yaml` is [deploy/config/default.yaml](../../deploy/config/default.yaml) with the endpoints that the servers write.
`envoy.json` is [deploy/envoy/original-dst.yaml](../../deploy/envoy/original-dst.yaml) with these ports, without TLS and
access log.

";
    }

    fn section(&self, page: &mut String, section: &Section) {
        let workload = section.workload;
        let _ = writeln!(page, "## {} (`{}`)\n", workload.title, workload.name);
        if let Some((metric, _)) = self.plot(section) {
            let _ = writeln!(page, "![{} by picker](benchmarks/{}.svg)\n", metric.name(), workload.name);
        }
        let _ = writeln!(page, "    {}\n", self.generator(workload));
        let names: Vec<&str> = self.pickers.iter().map(|picker| picker.name.as_str()).collect();
        let _ = writeln!(page, "| | {} |\n|---|{}", names.join(" | "), "--:|".repeat(names.len()));
        let checked = workload.checks.iter().map(|check| check.metric);
        for metric in checked.chain(workload.also.iter().copied()) {
            let cells = names.iter().map(|name| spread(summary(metric, name, &section.runs)));
            let name = match metric.unit() {
                "" => metric.name().to_owned(),
                unit => format!("{}, {unit}", metric.name()),
            };
            let _ = writeln!(page, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
        page.push('\n');
        for note in self.notes(section) {
            let _ = writeln!(page, "- {note}");
        }
        page.push('\n');
    }

    /// Notes on the runs of a workload.
    fn notes(&self, section: &Section) -> Vec<String> {
        let mut notes = Vec::new();
        let by_picker = |text: &dyn Fn(&[&Run]) -> Option<String>| {
            let of = |picker: &Picker| {
                let runs: Vec<&Run> = section.runs.iter().filter(|run| run.picker == picker.name).collect();
                Some(format!("{} {}", picker.name, text(&runs)?))
            };
            self.pickers.iter().filter_map(of).collect::<Vec<_>>().join(", ")
        };
        let late = by_picker(&|runs| {
            let share = runs.iter().filter_map(|run| Some(run.load.late.as_ref()?.share)).reduce(f64::max)?;
            let p99 = runs.iter().filter_map(|run| Some(run.load.late.as_ref()?.p99_ms)).reduce(f64::max)?;
            Some(format!("{} (p99 {} ms)", percent(share), number(p99)))
        });
        if !late.is_empty() {
            notes.push(format!("Sent late, in the worst round: {late}."));
        }
        let busy = by_picker(&|runs| {
            runs.iter().filter_map(|run| run.load.generator_cpu_share).reduce(f64::max).map(percent)
        });
        if !busy.is_empty() {
            notes.push(format!("Generator, of a core: {busy}."));
        }
        for run in section.runs.iter().filter(|run| run.load.requests.failed > 0) {
            let kinds = run.load.errors.iter().map(|(kind, count)| {
                let reason = run.load.reasons.get(kind).map(|reason| format!(": {reason}"));
                format!("{kind} {count}{}", reason.unwrap_or_default())
            });
            notes.push(format!(
                "**Round {}, {}: {} requests failed** ({}).",
                run.round,
                run.picker,
                run.load.requests.failed,
                kinds.collect::<Vec<_>>().join(", ")
            ));
        }
        notes.extend(section.failures.iter().map(|failure| format!("**Not measured: {failure}.**")));
        notes
    }

    /// The command of a workload, with the usual ports and without process numbers.
    fn generator(&self, workload: &Workload) -> String {
        let mut watched = vec!["PICKER=PID".to_owned()];
        if workload.way == Way::Envoy {
            watched.push(format!("{ENVOY}=PID"));
        }
        let target = generator::target(workload.way, &self.place.ports);
        let words = generator::words(workload, Times::of(workload, self.quick), &target, &watched);
        format!("{} {}", self.place.usher, words.join(" "))
    }

    /// Bars of the plot of a workload: for each picker the median and the rounds. `None` when
    /// nothing was measured.
    pub fn plot(&self, section: &Section) -> Option<(Metric, Vec<Bar>)> {
        let metric = section.workload.plotted;
        let bar = |picker: &Picker| {
            let points = values(metric, &picker.name, &section.runs);
            let median = Summary::of(points.clone())?.median;
            Some(Bar { name: picker.name.clone(), median, points })
        };
        let bars: Vec<_> = self.pickers.iter().filter_map(bar).collect();
        (!bars.is_empty()).then_some((metric, bars))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "round {}, {}: {}", self.round, self.who, self.why)
    }
}

fn rounds(count: usize) -> String {
    if count == 1 { "1 round".to_owned() } else { format!("{count} rounds") }
}

fn budget(check: &Check, allowed: Option<f64>) -> String {
    let unit = check.metric.unit();
    match check.bound {
        Bound::Times(factor) => format!("≤ {factor} ×"),
        Bound::Share(share) => format!("≥ {:.0} %", share * 100.0),
        Bound::MibAndBodies(mib, bodies) => {
            let sum = allowed.map_or_else(String::new, |sum| format!(" = {}", with_unit(sum, unit)));
            format!("≤ {mib} {unit} + {bodies} × the bodies in flight{sum}")
        }
        Bound::AtMost(most) => format!("≤ {}", with_unit(most, unit)),
    }
}

fn met_text(section: &Section, met: Option<bool>) -> String {
    let text = match met {
        Some(true) => "yes",
        Some(false) => "**missed**",
        None => "**not measured**",
    };
    let failed = section.failed(LIMIT) + section.failed(USHER);
    let failed = (failed > 0).then(|| format!("{failed} requests failed"));
    let short = (!section.failures.is_empty()).then(|| "some rounds not measured".to_owned());
    [Some(text.to_owned()), failed, short, section.doubt()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!(", {ratio:.2} × the limit's"))
}

fn spread(summary: Option<Summary>) -> String {
    summary.map_or_else(
        || "–".to_owned(),
        |value| format!("{} ({}–{})", number(value.median), number(value.min), number(value.max)),
    )
}
