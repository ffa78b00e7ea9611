//! External scaler for KEDA triggers of the types `external` and `external-push`.
//!
//! A trigger's metadata selects the plan: `policy` and `role`, each optional if there is only one. The metric
//! is `desired × targetSize`, with `targetSize` per pod, so that an HPA with a target of the type
//! `AverageValue` computes exactly the desired replicas.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::{BoxStream, unfold};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::plan_store::{PlanStore, Plans, PolicyEntry};
use proto::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use proto::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};

/// Messages and calls of `proto/externalscaler.proto`.
#[allow(
    missing_docs,
    clippy::all,
    reason = "generated: documented in the .proto file, and as the generator likes"
)]
pub mod proto {
    tonic::include_proto!("externalscaler");
}

/// Name of the metric.
pub const METRIC: &str = "usher-desired-replicas";

/// Largest value per pod.
const MOST_PER_POD: i64 = 1_000_000;

/// Largest message in bytes: names of an object, and its trigger's metadata.
const LARGEST_MESSAGE: usize = 16 << 10;

/// Most characters of a client's text in a status.
const QUOTED: usize = 100;

/// Serves KEDA from the plan store.
pub struct Scaler {
    plan_store: Arc<PlanStore>,
    leads: Leads,
}

/// Returns `true` if this replica leads.
type Leads = Arc<dyn Fn() -> bool + Send + Sync>;

/// The service, ready to serve.
pub type ScalerService = ExternalScalerServer<Scaler>;

/// Service over the plan store. It responds only while this replica `leads`, as plans of others are older.
pub fn service(
    plan_store: Arc<PlanStore>,
    leads: impl Fn() -> bool + Send + Sync + 'static,
) -> ScalerService {
    ExternalScalerServer::new(Scaler { plan_store, leads: Arc::new(leads) })
        .max_decoding_message_size(LARGEST_MESSAGE)
}

impl Scaler {
    /// Desired pods of the role in a trigger's metadata.
    #[allow(clippy::result_large_err, reason = "what tonic's services respond with")]
    fn desired(&self, metadata: &HashMap<String, String>) -> Result<u32, Status> {
        let desired = desired(&self.plan_store.plans(), metadata)?;
        if (self.leads)() { Ok(desired) } else { Err(unknown()) }
    }
}

impl std::fmt::Debug for Scaler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scaler").field("board", &self.plan_store).finish_non_exhaustive()
    }
}

fn unknown() -> Status {
    Status::unavailable("no plan yet: the pool isn't known, or another replica leads")
}

/// Desired pods of the role in a trigger's metadata.
#[allow(clippy::result_large_err, reason = "what tonic's services respond with")]
fn desired(plans: &Plans, metadata: &HashMap<String, String>) -> Result<u32, Status> {
    let entry = policy(plans, metadata.get("policy"))?;
    let known: Vec<&str> = entry.group.policy.roles.iter().map(|role| role.name.as_str()).collect();
    let place = match metadata.get("role") {
        Some(name) => known.iter().position(|role| role == name),
        None => (known.len() == 1).then_some(0),
    };
    let Some(place) = place else {
        let said = named("role", metadata.get("role"));
        let (policy, known) = (&entry.group.policy.name, known.join(", "));
        let text = format!("{said} in scalerMetadata; the roles of policy '{policy}' are {known}");
        return Err(Status::invalid_argument(text));
    };
    // Without a response an autoscaler keeps the replicas.
    if let Some(why) = entry.group.frozen {
        let policy = &entry.group.policy.name;
        return Err(Status::unavailable(format!("policy '{policy}' is blocked: {why:?}")));
    }
    let latest = entry.latest.as_ref().ok_or_else(unknown)?;
    Ok(latest.plan.roles.get(place).map_or(0, |role| role.write))
}

#[allow(clippy::result_large_err, reason = "what tonic's services respond with")]
fn policy<'a>(plans: &'a Plans, name: Option<&String>) -> Result<&'a PolicyEntry, Status> {
    let mut policies = plans.policies.iter();
    let found = match name {
        Some(name) => policies.find(|entry| entry.group.policy.name == *name),
        None => policies.next().filter(|_| plans.policies.len() == 1),
    };
    found.ok_or_else(|| {
        let known: Vec<&str> = plans.policies.iter().map(|entry| entry.group.policy.name.as_str()).collect();
        let said = named("policy", name);
        Status::invalid_argument(format!("{said} in scalerMetadata; the policies are {}", known.join(", ")))
    })
}

/// A client's text, shortened for a status.
fn quoted(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(QUOTED).collect()
}

fn named(what: &str, name: Option<&String>) -> String {
    match name {
        Some(name) => format!("unknown {what} '{}'", quoted(name)),
        None => format!("no {what}"),
    }
}

/// Metric value per pod.
#[allow(clippy::result_large_err, reason = "what tonic's services respond with")]
fn target_size(metadata: &HashMap<String, String>) -> Result<i64, Status> {
    let Some(text) = metadata.get("targetSize") else { return Ok(1) };
    text.parse().ok().filter(|size| (1..=MOST_PER_POD).contains(size)).ok_or_else(|| {
        Status::invalid_argument(format!(
            "targetSize '{}' in scalerMetadata; write a whole number from 1 to {MOST_PER_POD}, or leave it out",
            quoted(text)
        ))
    })
}

#[tonic::async_trait]
impl ExternalScaler for Scaler {
    async fn is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        let desired = self.desired(&request.get_ref().scaler_metadata)?;
        Ok(Response::new(IsActiveResponse { result: desired > 0 }))
    }

    type StreamIsActiveStream = BoxStream<'static, Result<IsActiveResponse, Status>>;

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        // Kept as long as the stream is open, so no more of it than is read.
        let mut metadata = request.into_inner().scaler_metadata;
        metadata.retain(|name, _| matches!(name.as_str(), "policy" | "role"));
        let (plans, leads) = (self.plan_store.subscribe(), Arc::clone(&self.leads));
        let watching = Watching { plans, leads, metadata, said: None, is_over: false };
        Ok(Response::new(unfold(watching, Watching::next).boxed()))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        let metadata = &request.get_ref().scaler_metadata;
        let target_size = target_size(metadata)?;
        // KEDA asks once, maybe before the first plan; an unknown name is an error immediately.
        match self.desired(metadata) {
            Err(status) if status.code() == tonic::Code::InvalidArgument => return Err(status),
            _ => {}
        }
        let spec =
            MetricSpec { metric_name: METRIC.to_owned(), target_size, target_size_float: target_size as f64 };
        Ok(Response::new(GetMetricSpecResponse { metric_specs: vec![spec] }))
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let GetMetricsRequest { scaled_object_ref, metric_name } = request.into_inner();
        if !metric_name.is_empty() && metric_name != METRIC {
            let text = format!("unknown metric '{}'; the only one is {METRIC}", quoted(&metric_name));
            return Err(Status::invalid_argument(text));
        }
        let metadata = scaled_object_ref.unwrap_or_default().scaler_metadata;
        let metric_value = i64::from(self.desired(&metadata)?) * target_size(&metadata)?;
        let value = MetricValue {
            metric_name: METRIC.to_owned(),
            metric_value,
            metric_value_float: metric_value as f64,
        };
        Ok(Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }
}

/// Stream of whether a role needs a pod.
struct Watching {
    plans: watch::Receiver<Arc<Plans>>,
    leads: Leads,
    metadata: HashMap<String, String>,
    said: Option<bool>,
    is_over: bool,
}

impl Watching {
    /// Waits for the next change. Unknown names, and another leader, end the stream.
    async fn next(mut self) -> Option<(Result<IsActiveResponse, Status>, Self)> {
        loop {
            if self.is_over {
                return None;
            }
            let desired = desired(&self.plans.borrow_and_update(), &self.metadata);
            match desired.and_then(|desired| if (self.leads)() { Ok(desired) } else { Err(unknown()) }) {
                Ok(desired) if self.said != Some(desired > 0) => {
                    self.said = Some(desired > 0);
                    return Some((Ok(IsActiveResponse { result: desired > 0 }), self));
                }
                Err(status) if status.code() == tonic::Code::InvalidArgument || !(self.leads)() => {
                    self.is_over = true;
                    return Some((Err(status), self));
                }
                // Unchanged, or unknown yet.
                _ => {}
            }
            if self.plans.changed().await.is_err() {
                return None;
            }
        }
    }
}
