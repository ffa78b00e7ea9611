//! `usher replay --suite`: every policy on every workload, and who is best.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, SystemTime};

use clap::Args;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::single::SINGLE;
use crate::load::trace::Row;
use crate::replay::{Build, Case, Cell, Comparison, Policy, Summary, run as replay};
use crate::sim::ModelKind;
use usher_terminal::{CliError, Column, Progress, line, paragraph, table};

/// Shares of what the servers can do that are asked for.
const UTILIZATIONS: [f64; 4] = [0.3, 0.5, 0.7, 0.85];

/// Longest name of a policy in a table.
const LONGEST_NAME: usize = 24;

/// Within this share of the best a policy counts as the best, too.
const EQUAL: f64 = 0.02;

/// Size of this program's file and when it was written: another build may decide otherwise. `None`
/// where that can't be read.
fn program() -> Option<(u64, SystemTime)> {
    let file = std::env::current_exe().ok()?.metadata().ok()?;
    Some((file.len(), file.modified().ok()?))
}

/// Arguments of the suite.
#[derive(Debug, Clone, Args)]
pub struct SuiteArgs {
    /// Run all policies, the baselines among them, on all workloads, engine models,
    /// utilizations and seeds, and say who is best where. Flags of servers and requests are for
    /// single runs.
    #[arg(long, conflicts_with_all = SINGLE, help_heading = "Suite")]
    pub suite: bool,
    /// Results of runs that are done, one JSON object a line; the suite goes on from there. Those of
    /// another program than this one, or with other limits, are done again.
    #[arg(long, value_name = "FILE", requires = "suite", help_heading = "Suite")]
    pub results: Option<PathBuf>,
    /// Workloads of the suite, separated by commas. Default: all.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", requires = "suite", help_heading = "Suite")]
    pub cases: Vec<String>,
    /// Engine models of the suite. Default: chunked-prefill,prefill-first.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", requires = "suite", help_heading = "Suite")]
    pub engines: Vec<String>,
    /// Shares of what the servers can do. Default: 0.3,0.5,0.7,0.85.
    #[arg(long, value_delimiter = ',', value_name = "SHARES", requires = "suite", help_heading = "Suite")]
    pub utilizations: Vec<f64>,
    /// Seeds, each with engines of its own.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..), requires = "suite", help_heading = "Suite")]
    pub seeds: u64,
}

/// Figures of a policy in a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figures {
    policy: String,
    ttft_p50: f64,
    ttft_p90: f64,
    tpot_p50: f64,
    tpot_p90: f64,
    tpot_p99: f64,
    e2e_p90: f64,
    goodput: f64,
    hits: f64,
    busiest: f64,
    refused: u64,
}

impl Figures {
    fn of(summary: &Summary) -> Self {
        let read = |latency: &Option<crate::replay::Latency>, read: fn(&crate::replay::Latency) -> f64| {
            latency.as_ref().map_or(0.0, read)
        };
        Self {
            policy: summary.policy.clone(),
            ttft_p50: read(&summary.ttft, |latency| latency.p50_s),
            ttft_p90: read(&summary.ttft, |latency| latency.p90_s),
            tpot_p50: read(&summary.tpot, |latency| latency.p50_s),
            tpot_p90: read(&summary.tpot, |latency| latency.p90_s),
            tpot_p99: read(&summary.tpot, |latency| latency.p99_s),
            e2e_p90: read(&summary.e2e, |latency| latency.p90_s),
            goodput: summary.goodput.share,
            hits: summary.token_hits,
            busiest: summary.busiest_by_mean,
            refused: summary.refused,
        }
    }
}

/// A run that is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Done {
    /// Hash of the policies and the limits: results of others don't count.
    key: u64,
    engine: String,
    case: String,
    utilization: f64,
    seed: u64,
    policies: Vec<Figures>,
}

impl Done {
    fn is(&self, cell: &Cell) -> bool {
        self.engine == cell.engine.name()
            && self.case == cell.case.name()
            && self.utilization == cell.utilization
            && self.seed == cell.seed
    }
}

/// Inputs of the suite.
pub(super) struct Suite<'a> {
    pub(super) args: &'a SuiteArgs,
    pub(super) policies: Vec<(String, Policy)>,
    pub(super) rows: Vec<Row>,
    pub(super) limits: (Duration, Duration),
}

impl Suite<'_> {
    fn cells(&self) -> Result<Vec<Cell>, String> {
        let cases = named(&self.args.cases, &Case::ALL, |case| case.name(), "workload")?;
        let models = [ModelKind::ChunkedPrefill, ModelKind::PrefillFirst];
        let engines = named(&self.args.engines, &models, |model| model.name(), "engine model")?;
        let shares = match &self.args.utilizations[..] {
            [] => &UTILIZATIONS,
            shares => shares,
        };
        if let Some(wrong) = shares.iter().find(|share| !(**share > 0.0 && **share <= 10.0)) {
            return Err(format!("--utilizations: {wrong} is not above 0 and at most 10"));
        }
        let mut cells = Vec::new();
        for seed in 0..self.args.seeds {
            for &engine in &engines {
                for &case in &cases {
                    cells.extend(shares.iter().map(|&utilization| Cell { case, engine, utilization, seed }));
                }
            }
        }
        Ok(cells)
    }

    /// A number that stands for everything that all runs have in common.
    fn key(&self) -> u64 {
        let parts = format!("{:?} {:?} {:?} {:?}", self.policies, self.limits, self.rows.len(), program());
        xxh3_64(parts.as_bytes())
    }

    /// Runs what isn't done, on all cores.
    pub(super) fn run(&self, build: &Build<'_>) -> Result<Outcome, CliError> {
        let cells = self.cells().map_err(CliError::Usage)?;
        let key = self.key();
        let mut done = match &self.args.results {
            Some(path) => read(path).map_err(CliError::Usage)?,
            None => Vec::new(),
        };
        done.retain(|done| done.key == key && cells.iter().any(|cell| done.is(cell)));
        let mut left: Vec<Cell> =
            cells.iter().filter(|cell| !done.iter().any(|done| done.is(cell))).copied().collect();
        // The longest first, so that no core is long without work at the end.
        left.sort_by_key(|cell| !cell.case.is_closed());
        let file = match &self.args.results {
            Some(path) => Some(append(path).map_err(CliError::Usage)?),
            None => None,
        };
        let shared = Mutex::new((done, file, Progress::default()));
        let next = AtomicUsize::new(0);
        let failed: Mutex<Option<String>> = Mutex::new(None);
        let workers = thread::available_parallelism().map_or(1, usize::from).min(left.len().max(1));
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while let Some(cell) = left.get(next.fetch_add(1, Relaxed)) {
                        match self.run_cell(cell, key, build) {
                            Ok(done) => keep(&shared, done, cells.len()),
                            Err(error) => {
                                next.store(left.len(), Relaxed);
                                *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                                    Some(error);
                            }
                        }
                    }
                });
            }
        });
        if let Some(error) = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            return Err(CliError::Failed(error));
        }
        let (done, ..) = shared.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut policies: Vec<String> = self.policies.iter().map(|(name, _)| name.clone()).collect();
        let of_runs = done.iter().flat_map(|done| &done.policies).map(|figures| &figures.policy);
        for policy in of_runs {
            if !policies.contains(policy) {
                policies.push(policy.clone());
            }
        }
        Ok(Outcome { cells, done, policies })
    }

    fn run_cell(&self, cell: &Cell, key: u64, build: &Build<'_>) -> Result<Done, String> {
        let own = cell.case.policies().map_err(|error| error.to_string())?;
        let policies = self.policies.iter().cloned().chain(own).collect();
        let settings = cell.settings(policies, &self.rows, self.limits);
        let comparison: Comparison = replay(&settings, build, |_| ()).map_err(|error| error.to_string())?;
        Ok(Done {
            key,
            engine: cell.engine.name().to_owned(),
            case: cell.case.name().to_owned(),
            utilization: cell.utilization,
            seed: cell.seed,
            policies: comparison.policies.iter().map(Figures::of).collect(),
        })
    }
}

fn keep(shared: &Mutex<(Vec<Done>, Option<File>, Progress)>, done: Done, all: usize) {
    let mut shared = shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (list, file, progress) = &mut *shared;
    if let (Some(file), Ok(text)) = (file, serde_json::to_string(&done)) {
        // Only the next start has to do it again.
        let _ = writeln!(file, "{text}");
    }
    let text = format!("{}, {}, {} %", done.engine, done.case, done.utilization * 100.0);
    list.push(done);
    progress.part(list.len() as u64, all as u64, &format!("runs: {text}"));
}

fn named<T: Copy>(
    names: &[String],
    all: &[T],
    name: impl Fn(T) -> &'static str,
    what: &str,
) -> Result<Vec<T>, String> {
    if names.is_empty() {
        return Ok(all.to_vec());
    }
    let find = |wanted: &String| {
        all.iter().copied().find(|known| name(*known) == wanted).ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|known| name(*known)).collect();
            format!("the suite has no {what} '{wanted}'; it has {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}

fn read(path: &Path) -> Result<Vec<Done>, String> {
    let cannot = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cannot(error)),
    };
    let mut done = Vec::new();
    for line in BufReader::new(file).lines() {
        // One that was cut off is done again.
        done.extend(serde_json::from_str::<Done>(&line.map_err(cannot)?).ok());
    }
    Ok(done)
}

fn append(path: &Path) -> Result<File, String> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.map_err(|error| format!("cannot write to {}: {error}", path.display()))
}

/// Results of the suite.
#[derive(Serialize)]
pub(super) struct Outcome {
    #[serde(skip)]
    cells: Vec<Cell>,
    #[serde(rename = "runs")]
    done: Vec<Done>,
    policies: Vec<String>,
}

/// A figure of a table.
struct Measure {
    name: &'static str,
    read: fn(&Figures) -> f64,
    /// More is better.
    more: bool,
    /// Policies are compared by it, not only shown.
    is_compared: bool,
    shown: fn(f64) -> String,
}

const fn seconds(name: &'static str, read: fn(&Figures) -> f64) -> Measure {
    Measure { name, read, more: false, is_compared: true, shown: |seconds| format!("{seconds:.3}") }
}

const fn per_token(name: &'static str, read: fn(&Figures) -> f64, is_compared: bool) -> Measure {
    Measure { name, read, more: false, is_compared, shown: |seconds| format!("{:.1}", seconds * 1e3) }
}

const MEASURES: [Measure; 6] = [
    seconds("TTFT p90", |figures| figures.ttft_p90),
    per_token("TPOT p50", |figures| figures.tpot_p50, false),
    per_token("p90", |figures| figures.tpot_p90, true),
    per_token("p99", |figures| figures.tpot_p99, false),
    Measure { shown: |seconds| format!("{seconds:.2}"), ..seconds("all p90", |figures| figures.e2e_p90) },
    Measure {
        more: true,
        shown: |share| format!("{share:.3}"),
        ..seconds("good", |figures| figures.goodput)
    },
];

/// Places of the measures that policies are compared by, with their names in the summary.
const COMPARED: [(usize, &str); 4] = [(0, "TTFT p90"), (2, "TPOT p90"), (4, "all p90"), (5, "good")];

/// Means over the seeds: of times the geometric one, of shares the arithmetic one.
type Means = HashMap<(String, String, u64, String), [f64; 6]>;

impl Outcome {
    /// Returns `true` if a policy runs in every case, so that its counts compare with others'.
    fn runs_everywhere(&self, policy: &str) -> bool {
        self.done.iter().all(|done| done.policies.iter().any(|figures| figures.policy == policy))
    }

    fn means(&self) -> Means {
        let mut sums: HashMap<(String, String, u64, String), ([f64; 6], f64)> = HashMap::new();
        for done in &self.done {
            for figures in &done.policies {
                let share = done.utilization.to_bits();
                let key = (done.engine.clone(), done.case.clone(), share, figures.policy.clone());
                let (sum, count) = sums.entry(key).or_default();
                for (sum, measure) in sum.iter_mut().zip(&MEASURES) {
                    let value = (measure.read)(figures);
                    *sum += if measure.more { value } else { value.max(1e-6).ln() };
                }
                *count += 1.0;
            }
        }
        let mean = |(key, (mut sum, count)): (_, ([f64; 6], f64))| {
            for (sum, measure) in sum.iter_mut().zip(&MEASURES) {
                *sum = if measure.more { *sum / count } else { (*sum / count).exp() };
            }
            (key, sum)
        };
        sums.into_iter().map(mean).collect()
    }
}

/// The end of a policy's name, where it is long: the end of a path says more.
fn shown(policy: &str) -> String {
    let count = policy.chars().count();
    policy.chars().skip(count.saturating_sub(LONGEST_NAME)).collect()
}

/// Distance from the best: 0 is the best.
fn behind(value: f64, best: f64, more: bool) -> f64 {
    if more { best - value } else { value / best.max(1e-9) - 1.0 }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let means = self.means();
        line(f, "runs", format_args!("{}", self.done.len()))?;
        let mut rows: Vec<(&'static str, &'static str, f64)> = Vec::new();
        for cell in &self.cells {
            let row = (cell.engine.name(), cell.case.name(), cell.utilization);
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
        let mut wins: HashMap<(&str, &str, usize), (u32, f64)> = HashMap::new();
        for &(engine, case, share) in &rows {
            writeln!(f, "\n{engine}, {case}, {:.0} % busy", share * 100.0)?;
            // The last character is the mark's.
            let titles = MEASURES.map(|measure| format!("{} ", measure.name));
            let of = |policy: &String| {
                means.get(&(engine.to_owned(), case.to_owned(), share.to_bits(), policy.clone()))
            };
            let mut table_rows = Vec::new();
            for policy in &self.policies {
                let Some(values) = of(policy) else { continue };
                let mut cells = vec![shown(policy)];
                for (n, measure) in MEASURES.iter().enumerate() {
                    let all = self.policies.iter().filter_map(of).map(|values| values[n]);
                    let best = if measure.more {
                        all.fold(0.0, f64::max)
                    } else {
                        all.fold(f64::INFINITY, f64::min)
                    };
                    let behind = behind(values[n], best, measure.more);
                    let mark = if measure.is_compared && behind <= EQUAL { "*" } else { " " };
                    cells.push(format!("{}{mark}", (measure.shown)(values[n])));
                    let (count, sum) = wins.entry((engine, policy, n)).or_default();
                    *count += u32::from(behind <= EQUAL);
                    *sum += behind.min(10.0);
                }
                table_rows.push(cells);
            }
            let columns: Vec<Column<'_>> = std::iter::once(Column::text(""))
                .chain(titles.iter().map(|title| Column::number(title)))
                .collect();
            write!(f, "{}", table(&columns, &table_rows, f.width()))?;
        }
        let mut engines: Vec<&str> = rows.iter().map(|(engine, ..)| *engine).collect();
        engines.dedup();
        for engine in engines {
            let all = rows.iter().filter(|(other, ..)| *other == engine).count();
            writeln!(f)?;
            paragraph(
                f,
                format_args!("{engine}: best, or within 2 % of the best, of {all}; mean distance from it"),
            )?;
            let row = |policy: &String| -> Vec<String> {
                let cell = |(n, _): (usize, &str)| {
                    let (count, sum) = wins.get(&(engine, policy.as_str(), n)).copied().unwrap_or_default();
                    format!("{count:>4} {:>6.1} %", sum / all as f64 * 100.0)
                };
                std::iter::once(shown(policy)).chain(COMPARED.map(cell)).collect()
            };
            let policies = self.policies.iter().filter(|policy| self.runs_everywhere(policy));
            let rows: Vec<Vec<String>> = policies.map(row).collect();
            let columns: Vec<Column<'_>> = std::iter::once(Column::text(""))
                .chain(COMPARED.map(|(_, name)| Column::number(name)))
                .collect();
            write!(f, "{}", table(&columns, &rows, f.width()))?;
        }
        writeln!(f)?;
        paragraph(
            f,
            format_args!(
                "*: the best, or within 2 % of it. TTFT and all (to the last token) are in seconds, TPOT in \
                 milliseconds."
            ),
        )
    }
}
