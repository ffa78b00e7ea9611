//! InferenceObjective: how urgent requests are that name it.

use serde::{Deserialize, Serialize};

use super::{Object, PoolReference};

/// A name for requests of the same urgency.
pub type InferenceObjective = Object<ObjectiveSpec>;

/// Specification of an InferenceObjective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectiveSpec {
    /// Higher goes first; negative may be refused when the pool is full. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The pool whose requests it is about.
    pub pool_ref: PoolReference,
}
