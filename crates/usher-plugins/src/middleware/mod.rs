//! Plugins around a decision: what they learn from headers, whom they keep out, and
//! what they do once a decision stands.

pub(crate) mod agent_identity;
pub(crate) mod latency_slo_admitter;
pub(crate) mod probabilistic_admitter;
pub(crate) mod reporter;
pub(crate) mod rollout;
pub(crate) mod served_verifier;
pub(crate) mod session;

pub use agent_identity::{AgentIdentity, AgentIdentityParams};
pub use latency_slo_admitter::{LatencySloAdmitter, LatencySloAdmitterParams};
pub use probabilistic_admitter::{ProbabilisticAdmitter, ProbabilisticAdmitterParams};
pub use reporter::{ReporterMetrics, ReporterParams, RequestAttributeReporter};
pub use rollout::{RolloutMetrics, RolloutParams, RolloutScreener};
pub use served_verifier::ServedVerifier;
pub use session::{
    Bindings, SessionAffinity, SessionAffinityParams, SessionMetrics, SessionSource, SourceParams, Strategy,
};
