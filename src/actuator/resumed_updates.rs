//! Resumes rolling updates that were held back for a deleted policy, or one without `update`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::held_back::{ResumedTarget, going_on};
use super::problem_subject::ProblemSubject;
use super::state::Actuator;
use crate::capacity::Policy;
use crate::capacity::policy::TargetRef;
use crate::cluster::{PatchType, Problem};

/// Time for which a target is checked: writes in flight may have held it back once more.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Time for which it is retried while the API server doesn't respond, or another replica leads.
const TRIED: Duration = Duration::from_secs(600);

/// Delay of the first check: another policy may get the target at the same moment, or the same one again.
const LATER: Duration = Duration::from_secs(10);

/// Targets whose updates these policies hold back.
fn held<'a>(policies: impl Iterator<Item = &'a Arc<Policy>>) -> Vec<&'a TargetRef> {
    let roles = policies.filter(|policy| policy.holds_updates()).flat_map(|policy| &policy.roles);
    roles.filter_map(|role| role.target.as_ref()).collect()
}

impl Actuator {
    /// Records targets of these policies whose updates no policy in force holds back.
    pub(super) fn note_updates_to_resume(&mut self, before: &[Arc<Policy>], now: &[Arc<Policy>]) {
        let since = self.clock.elapsed();
        let kept = held(now.iter());
        let is_kept = |target: &TargetRef| kept.iter().any(|known| known.is_same(target));
        self.resumed.retain(|known| !is_kept(&known.target));
        for target in held(before.iter()) {
            if !is_kept(target) && !self.resumed.iter().any(|known| known.target.is_same(target)) {
                self.resumed.push(ResumedTarget { target: target.clone(), since });
            }
        }
    }

    /// Returns `true` if updates are to be resumed.
    pub fn has_updates_to_resume(&self) -> bool {
        !self.resumed.is_empty()
    }

    /// Resumes their updates, except those that a policy holds back: `kept` are its targets.
    pub async fn resume_updates(&mut self, kept: &[TargetRef]) {
        self.begin();
        let now = self.clock.elapsed();
        for resumed in std::mem::take(&mut self.resumed) {
            let age = now.saturating_sub(resumed.since);
            if kept.iter().any(|target| target.is_same(&resumed.target)) {
                // As long as that policy exists.
                self.resumed.push(ResumedTarget { since: now, ..resumed });
                continue;
            }
            if age < LATER || !self.term.lasts() {
                if age < TRIED {
                    self.resumed.push(resumed);
                }
                continue;
            }
            let subject = ProblemSubject::target("rolling update of ", &resumed.target);
            let most = match self.goes_on(&resumed.target).await {
                Ok(()) => {
                    self.clear_problem(subject);
                    CHECK_INTERVAL
                }
                Err(Problem::NotFound(_)) => continue,
                Err(problem) => {
                    self.report_problem(subject, &problem);
                    TRIED
                }
            };
            if age < most {
                self.resumed.push(resumed);
            }
        }
    }

    async fn goes_on(&mut self, target: &TargetRef) -> Result<(), Problem> {
        let kind = self.kinds.of(&self.cluster, target).await?;
        let path = kind.path(&self.namespace, &target.name);
        let object: Value = self.cluster.get(&path).await?;
        let Some(patch) = going_on(&target.api_version, &target.kind, &object) else { return Ok(()) };
        let _: Value = self.term.write(self.cluster.patch(&path, PatchType::Merge, &patch)).await?;
        tracing::info!(path, "rolling update resumed, no policy paces it");
        Ok(())
    }
}
