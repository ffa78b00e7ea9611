//! Plugins around a decision: what they learn from headers, whom they keep out, and
//! what they do once a decision stands.

mod agent_identity;
mod latency_slo_admitter;
mod probabilistic_admitter;
mod reporter;
mod rollout;
mod served_verifier;
mod session;

pub use agent_identity::{AgentIdentity, AgentIdentityParams};
pub use latency_slo_admitter::{LatencySloAdmitter, LatencySloAdmitterParams};
pub use probabilistic_admitter::{ProbabilisticAdmitter, ProbabilisticAdmitterParams};
pub use reporter::{ReporterMetrics, ReporterParams, RequestAttributeReporter};
pub use rollout::{RolloutMetrics, RolloutParams, RolloutScreener};
pub use served_verifier::ServedVerifier;
pub use session::{
    Bindings, SessionAffinity, SessionAffinityParams, SessionMetrics, SessionSource, SourceParams, Strategy,
};
