//! The objects that are read, as the API server writes them: what Usher needs of them and
//! what an operator writes, no more. Fields that are not listed here are ignored.

mod object;
mod objective;
mod pod;
mod pool;
mod rewrite;

pub use crate::cluster::Metadata;
pub use object::{Object, PoolReference};
pub use objective::{InferenceObjective, ObjectiveSpec};
pub use pod::Pod;
pub use pool::{AppProtocol, EndpointPickerRef, FailureMode, InferencePool, LabelSelector, PoolSpec, Port};
pub use rewrite::{
    InferenceModelRewrite, MatchType, ModelMatch, Rewrite, RewriteSpec, RewriteTarget, RuleMatch,
};

/// Group of InferencePool, and what a reference to a pool means where it names none.
pub const POOL_GROUP: &str = "inference.networking.k8s.io";

/// Version of InferencePool.
pub const POOL_VERSION: &str = "v1";

/// Groups of InferenceObjective and InferenceModelRewrite, the one that is preferred first.
pub const RULE_GROUPS: [&str; 2] = ["llm-d.ai", "inference.networking.x-k8s.io"];

/// Version of InferenceObjective and InferenceModelRewrite in either group.
pub const RULE_VERSION: &str = "v1alpha2";
