//! Requests to the API server for pools as for policies: objects of any kind, and rights.

use std::time::Duration;

use serde_json::{Value, json};

use super::plan::PoolPlan;
use crate::cluster::Watched;

/// Time for a review of rights.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// An object of any kind.
#[derive(Clone, serde::Deserialize)]
pub(super) struct Any(pub(super) Value);

impl Watched for Any {
    fn version(&self) -> &str {
        self.0.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default()
    }
}

/// Path and body of a question for a right.
pub(super) fn review(plan: &PoolPlan, attributes: &Value) -> (String, Vec<u8>) {
    let kind = review_kind(plan);
    let mut spec = json!({"resourceAttributes": attributes});
    if let Some(account) = &plan.account {
        spec["user"] = format!("system:serviceaccount:{}:{account}", plan.namespace).into();
        spec["groups"] = json!([
            "system:serviceaccounts",
            format!("system:serviceaccounts:{}", plan.namespace),
            "system:authenticated"
        ]);
    }
    let path = format!("/apis/authorization.k8s.io/v1/{}s", kind.to_ascii_lowercase());
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
    (path, review.to_string().into_bytes())
}

pub(super) fn review_kind(plan: &PoolPlan) -> &'static str {
    if plan.account.is_some() { "SubjectAccessReview" } else { "SelfSubjectAccessReview" }
}
