//! The flags of `usher serve`: those of the peer, so that a deployment can swap the
//! image, and a few of our own.

mod capacity;
mod config;
mod listen;
mod log;
mod metrics;
mod pool;
mod selector;
mod sick;
mod tls;

#[cfg(test)]
mod tests;

use clap::{Arg, Args, Command};

use crate::config::units::parse_bool;
use crate::settings::{Environment, ServeSettings, UnusedFlag};

pub use capacity::CapacityFlags;
pub use config::ConfigFlags;
pub use listen::ListenFlags;
pub use log::LogFlags;
pub use metrics::MetricsFlags;
pub use pool::PoolFlags;
pub use sick::SickFlags;
pub use tls::TlsFlags;

/// What the value of a boolean flag is called in the help; marks it for [`as_pflag`].
const BOOL: &str = "BOOL";

/// The flags of `usher serve`, as given.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Ports, sizes, threads and the drain.
    #[command(flatten)]
    pub listen: ListenFlags,
    /// TLS of the ext_proc port.
    #[command(flatten)]
    pub tls: TlsFlags,
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigFlags,
    /// The pool.
    #[command(flatten)]
    pub pool: PoolFlags,
    /// Endpoints that fail.
    #[command(flatten)]
    pub sick: SickFlags,
    /// Metrics, of the model servers and our own.
    #[command(flatten)]
    pub metrics: MetricsFlags,
    /// How many pods there should be.
    #[command(flatten)]
    pub capacity: CapacityFlags,
    /// Logs and traces.
    #[command(flatten)]
    pub log: LogFlags,
}

impl ServeArgs {
    /// Validates the flags. The environment counts where no flag says otherwise.
    ///
    /// # Errors
    /// One line: what is wrong, with which flag, and what to do.
    pub fn settings(self, environment: Environment) -> Result<ServeSettings, String> {
        let mut unused = Unused::default();
        self.metrics.refuse_deprecated()?;
        let tls = self.tls.settings(&mut unused)?;
        Ok(ServeSettings {
            metrics_port: self.metrics.port(tls.as_ref(), &mut unused)?,
            listen: self.listen.addresses(self.capacity.keda()?)?,
            limits: self.listen.limits(),
            memory: self.listen.memory()?,
            worker_threads: self.listen.threads(),
            drain_timeout: self.listen.drain_timeout,
            tls,
            config: self.config.source()?,
            allow_experimental_plugins: self.config.allow_experimental_plugins,
            endpoints_file: given(&self.config.endpoints_file).map(Into::into),
            allow_empty_endpoints: self.config.allow_empty_endpoints,
            disable_subset_filter: self.config.disable_endpoint_subset_filter,
            locator: self.config.locator(),
            emit_endpoint_scores: self.config.emit_endpoint_scores,
            pool: self.pool.settings(environment, &mut unused)?,
            sick_pods: self.sick.settings(),
            refresh_metrics_interval: self.metrics.refresh_metrics_interval(),
            refresh_pool_metrics_interval: self.metrics.refresh_prometheus_metrics_interval,
            metrics_staleness: self.metrics.metrics_staleness_threshold,
            stream_metrics: self.metrics.enable_grpc_stream_metrics,
            capacity_policy: self.capacity.policy()?,
            capacity_policies: self.capacity.capacity_policies,
            capacity_single_replica: self.capacity.capacity_single_replica,
            prometheus: self.capacity.prometheus()?,
            log: self.log.settings(&mut unused)?,
            unused: unused.flags,
        })
    }
}

/// Collects the flags that were given and do nothing.
#[derive(Debug, Default)]
struct Unused {
    flags: Vec<UnusedFlag>,
}

impl Unused {
    /// Notes `flag` if it was given.
    fn note(&mut self, given: bool, flag: &'static str, reason: &'static str) {
        if given {
            self.flags.push(UnusedFlag { flag, reason, with_a_file: false });
        }
    }

    /// Notes a flag that does nothing when endpoints come from a file.
    fn note_with_a_file(&mut self, given: bool, flag: &'static str, reason: &'static str) {
        if given {
            self.flags.push(UnusedFlag { flag, reason, with_a_file: true });
        }
    }
}

/// A text that says something. Charts render flags that are not set as empty.
fn given(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

/// Makes the flags of a command read as the peer's flag library (pflag) does: the last
/// of a repeated flag wins, a boolean stands alone or takes its value after `=`, any
/// other takes the next argument whatever it looks like.
pub fn as_pflag(command: Command) -> Command {
    command.args_override_self(true).mut_args(|arg: Arg| {
        let is_bool = arg.get_value_names().is_some_and(|names| names == [BOOL]);
        if is_bool {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true")
        } else {
            arg.allow_hyphen_values(true)
        }
    })
}
