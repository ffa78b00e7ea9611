//! Plugins around a decision: what they learn from headers, whom they keep out, and
//! what they do once a decision stands.

mod agent_identity;
mod probabilistic_admitter;
mod session;

pub use agent_identity::{AgentIdentity, AgentIdentityParams};
pub use probabilistic_admitter::{ProbabilisticAdmitter, ProbabilisticAdmitterParams};
pub use session::{
    Bindings, SessionAffinity, SessionAffinityParams, SessionMetrics, SessionSource, SourceParams, Strategy,
};
