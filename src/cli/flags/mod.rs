//! The flags of `usher serve`: those of llm-d-router, so that a deployment can swap the
//! image, and a few of our own.

mod capacity;
mod config;
mod listen;
mod log;
mod metrics;
mod outlier;
mod pflag;
mod pool;
mod selector;
mod state_store;
mod tls;
mod tracing;
mod unused;

#[cfg(test)]
mod tests;

use clap::Args;

use crate::settings::{Environment, ServeSettings};

pub use capacity::CapacityFlags;
pub use config::ConfigFlags;
pub use listen::ListenFlags;
pub(in crate::cli) use listen::memory_budget;
pub use log::LogFlags;
pub use metrics::MetricsFlags;
pub use outlier::OutlierFlags;
pub use pflag::as_pflag;
use pflag::given;
pub use pool::PoolFlags;
pub use state_store::StateStoreFlags;
pub use tls::TlsFlags;
use unused::Unused;

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
    /// State that replicas share.
    #[command(flatten)]
    pub state_store: StateStoreFlags,
    /// Endpoints that fail.
    #[command(flatten)]
    pub outliers: OutlierFlags,
    /// Metrics, of the model servers and our own.
    #[command(flatten)]
    pub metrics: MetricsFlags,
    /// Capacity policies.
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
    /// One line: the flag, its mistake, and what to do.
    pub fn settings(self, environment: Environment) -> Result<ServeSettings, String> {
        let mut unused = Unused::default();
        self.metrics.refuse_deprecated()?;
        let tls = self.tls.settings(&mut unused)?;
        let tracing = tracing::settings(self.log.tracing, &environment.otel);
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
            state_store: self.state_store.settings()?,
            warm_up_timeout: self.state_store.warm_up_timeout,
            outliers: self.outliers.settings(),
            refresh_metrics_interval: self.metrics.refresh_metrics_interval(),
            raised_refresh_interval: self.metrics.raised_refresh_interval(),
            metrics_staleness: self.metrics.metrics_staleness_threshold,
            stream_metrics: self.metrics.enable_grpc_stream_metrics,
            gen_ai_metrics: self.metrics.gen_ai_metrics,
            capacity_policy: self.capacity.policy()?,
            capacity_policies: self.capacity.capacity_policies,
            capacity_single_replica: self.capacity.capacity_single_replica,
            prometheus: self.capacity.prometheus()?,
            decision_records: self.log.decision_records,
            recording: self.log.recording()?,
            log: self.log.settings(&mut unused)?,
            tracing,
            unused: unused.flags,
        })
    }
}
