//! Resolves the rollout settings of a policy.

use std::time::Duration;

use super::Reader;
use crate::policy::limits::MOST_PODS;
use crate::policy::rollout::{
    ConstraintSpec, DeploySpec, LONGEST_STEP, Progression, SuccessSpec, TimeoutSpec, TopologySpec,
};
use crate::policy::span::GoDuration;
use crate::policy::spec::Spec;
use crate::rollout::{
    BATCH_TIMEOUT, OnTimeout, PROVISIONING_TIMEOUT, Pace, Rollout, Success, Topology, Update,
};

/// Default percentages.
const MAX_SKEW: u32 = 10;
const MAX_UNAVAILABLE: u32 = 5;

impl Reader {
    /// Rollout settings; `None` if the policy has none.
    pub(super) fn rollout(&mut self, spec: &Spec) -> Option<Rollout> {
        if spec.deploy.is_none() && spec.scaling.is_none() && spec.update.is_none() {
            return None;
        }
        let default = DeploySpec::default();
        let deploy = spec.deploy.as_ref().unwrap_or(&default);
        let mut pace = None;
        if let Some(scaling) = &spec.scaling {
            pace = Some(Pace::Skew(self.whole(scaling.max_skew_percent, MAX_SKEW, 100)));
        }
        if !deploy.steps.is_empty() {
            let step = |role: &String| self.whole(deploy.steps.get(role).copied(), 0, MOST_PODS);
            pace = Some(Pace::Steps(spec.roles.keys().map(step).collect()));
        }
        let progression = spec.scaling.as_ref().map(|scaling| scaling.progression);
        let success = match (deploy.success, progression) {
            (Some(SuccessSpec::Scheduled), _) | (None, Some(Progression::OrderScheduled)) => {
                Success::Scheduled
            }
            (Some(SuccessSpec::Running), _) => Success::Running,
            (Some(SuccessSpec::Serving), _) => Success::Serving,
            (Some(SuccessSpec::Ready), _) | (None, _) => Success::Ready,
        };
        let update = spec.update.as_ref().map(|update| Update {
            max_skew: self.whole(update.max_skew_percent, MAX_SKEW, 100),
            max_unavailable: self.whole(update.max_unavailable_percent, MAX_UNAVAILABLE, 100),
        });
        let mut time = |written: Option<GoDuration>, default: Duration| {
            let written = GoDuration::or(written, default);
            self.checked(written, written.min(LONGEST_STEP))
        };
        Some(Rollout {
            pace,
            success,
            batch_timeout: time(deploy.batch_timeout, BATCH_TIMEOUT),
            provisioning_timeout: time(deploy.provisioning_timeout, PROVISIONING_TIMEOUT),
            on_timeout: match deploy.on_timeout {
                TimeoutSpec::Hold => OnTimeout::Hold,
                TimeoutSpec::Trim => OnTimeout::Trim,
                TimeoutSpec::Fail => OnTimeout::Fail,
            },
            topology: deploy.topology.as_ref().map(topology),
            update,
        })
    }
}

fn topology(written: &TopologySpec) -> Topology {
    let layers = written.layers();
    let layer = written.layer.as_ref().and_then(|layer| layers.iter().position(|key| key == layer));
    Topology {
        layer: layer.unwrap_or(0),
        layers,
        is_required: written.constraint == ConstraintSpec::Required,
    }
}
