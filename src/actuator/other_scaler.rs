//! Finds other autoscalers and owners of a target before the first write.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::problem_subject::ProblemSubject;
use super::scaler::{Controller, Owned, Scaler, ScalerObject, Scalers, has_owner};
use super::state::Actuator;
use super::target::Target;
use crate::capacity::policy::TargetRef;
use crate::cluster::{Collection, Metadata, Problem};

/// Time for which a response is cached.
const KNOWN: Duration = Duration::from_secs(10);

/// Owner references of a workload.
#[derive(Deserialize)]
struct Workload {
    metadata: Metadata,
}

impl Actuator {
    /// Autoscalers of the namespace; `None` if they can't be listed. Shared by policies applied concurrently.
    async fn find_scalers(&mut self, now: Duration) -> Option<Arc<[Scaler]>> {
        let shared = Arc::clone(&self.scalers);
        // Held during the request: other policies wait for its response.
        let mut scalers = shared.lock().await;
        if now < scalers.until {
            return scalers.known.clone();
        }
        let found = self.list_scalers().await;
        let at = self.clock.elapsed();
        match found {
            Ok(found) => {
                self.clear_problem("autoscalers");
                *scalers = Scalers { until: at + KNOWN, known: Some(found.into()), ..Scalers::default() };
            }
            Err(problem) => {
                self.report_problem("autoscalers", &problem);
                let pause = scalers.backoff.after(Some(&problem), &mut rand::rng());
                // After a grant of the right, retried soon.
                let most = if problem.is_of_the_server() { Duration::MAX } else { KNOWN };
                (scalers.until, scalers.known) = (at + pause.min(most), None);
            }
        }
        scalers.known.clone()
    }

    /// Autoscaler or owner of one of these targets, as a sentence; `None` if there is none. Autoscalers that
    /// can't be listed count as present; owners that RBAC hides are detected by their writes.
    pub(super) async fn other_scaler(&mut self, targets: &[&Target], now: Duration) -> Option<String> {
        let Some(known) = self.find_scalers(now).await else {
            return Some("autoscalers can't be listed".to_owned());
        };
        let scaled = targets.iter().map(|target| &target.reference).find_map(|target| {
            let found = known.iter().find(|scaler| scaler.scales(target))?;
            Some(format!("{} '{}' scales {} {}", found.kind, found.name, target.kind, target.name))
        });
        if scaled.is_some() {
            return scaled;
        }
        for target in targets {
            let TargetRef { kind, name, .. } = &target.reference;
            match self.owner(target, now).await {
                Ok(Controller::Is(of, owner)) => {
                    return Some(format!("{of} '{owner}' controls {kind} {name}"));
                }
                Ok(Controller::Absent | Controller::Hidden) => {}
                Err(problem) => {
                    self.report_problem(ProblemSubject::target("owner of ", &target.reference), &problem);
                    return Some(format!("the owner of {kind} {name} can't be read"));
                }
            }
        }
        None
    }

    /// Returns `true` if RBAC forbids reading one of these targets, so that its owner is unknown.
    pub(super) fn has_hidden_owner(&self, targets: &[&Target]) -> bool {
        let is_hidden = |(of, _, owner): &Owned| {
            *owner == Controller::Hidden && targets.iter().any(|target| target.reference == *of)
        };
        self.owned.iter().any(is_hidden)
    }

    /// Controlling owner of a workload.
    async fn owner(&mut self, target: &Target, now: Duration) -> Result<Controller, Problem> {
        if !has_owner(&target.reference) {
            return Ok(Controller::Absent);
        }
        let known =
            self.owned.iter().find(|(of, at, _)| *of == target.reference && now.saturating_sub(*at) < KNOWN);
        if let Some((_, _, owner)) = known {
            return Ok(owner.clone());
        }
        let owner = match self.cluster.get::<Workload>(&target.path).await {
            Ok(workload) => {
                self.clear_problem(ProblemSubject::target("owner of ", &target.reference));
                let mut owners = workload.metadata.owner_references.into_iter();
                let owner = owners.find(|owner| owner.controller);
                owner.map_or(Controller::Absent, |owner| Controller::Is(owner.kind, owner.name))
            }
            Err(Problem::Denied(_)) => Controller::Hidden,
            Err(problem) => return Err(problem),
        };
        self.owned.retain(|(of, ..)| *of != target.reference);
        self.owned.push((target.reference.clone(), now, owner.clone()));
        Ok(owner)
    }

    async fn list_scalers(&self) -> Result<Vec<Scaler>, Problem> {
        let mut all =
            self.list_of("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler").await?;
        match self.list_of("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject").await {
            Ok(more) => all.extend(more),
            // Without KEDA there are none. If RBAC forbids it, the HPA that KEDA creates for each is found.
            Err(Problem::NotFound(_) | Problem::Denied(_)) => {}
            Err(problem) => return Err(problem),
        }
        Ok(all)
    }

    async fn list_of(
        &self,
        group: &str,
        version: &str,
        plural: &str,
        kind: &'static str,
    ) -> Result<Vec<Scaler>, Problem> {
        let collection = Collection::new(group, version, &self.namespace, plural);
        let (found, _) = self.cluster.list::<ScalerObject>(&collection).await?;
        let scaler = |object: ScalerObject| Scaler {
            kind,
            name: object.metadata.name,
            of: object.spec.scale_target_ref,
        };
        Ok(found.into_iter().map(scaler).collect())
    }
}
