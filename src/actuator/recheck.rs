//! Lists pods again before a scale-down: watches may lag.

use std::collections::BTreeSet;

use super::drain::is_marked;
use super::observe::Observed;
use super::owner_refs::is_of_role;
use super::pods::PodObject;
use super::selector::both;
use super::state::Actuator;
use crate::capacity::Policy;
use crate::cluster::Collection;

/// Subject of problems with these requests.
const SUBJECT: &str = "pods before deletion";

/// Uid of a pod, and whether it is ready, at our gate, and has our deletion cost.
type Fingerprint = (String, bool, bool, bool);

fn fingerprint(pod: &PodObject) -> Fingerprint {
    (pod.metadata.uid.clone(), pod.is_ready(), pod.is_gated(), is_marked(pod))
}

impl Actuator {
    /// Returns `true` if the pods of a policy's roles are still the observed ones. Pods are removed on this
    /// condition only: those that the plan counts on may be gone, or unready.
    pub(super) async fn pods_unchanged(&mut self, policy: &Policy, seen: &Observed) -> bool {
        let Some(pool) = self.pool.borrow().clone() else { return false };
        for (place, role) in policy.roles.iter().enumerate() {
            let before = policy.roles.get(..place).unwrap_or_default();
            let pods =
                Collection::new("", "v1", &self.namespace, "pods").with_labels(&both(&role.selector, &pool));
            let listed: Vec<PodObject> = match self.cluster.list(&pods).await {
                Ok((listed, _)) => listed,
                Err(problem) => {
                    self.report_failure(SUBJECT, &problem);
                    return false;
                }
            };
            self.clear_problem(SUBJECT);
            let is_own = |pod: &&PodObject| {
                pod.is_alive()
                    && is_of_role(pod, &role.selector, role.target.as_ref())
                    && !before.iter().any(|other| is_of_role(pod, &other.selector, other.target.as_ref()))
            };
            let listed: BTreeSet<Fingerprint> = listed.iter().filter(is_own).map(fingerprint).collect();
            let known = seen.objects.get(place).into_iter().flatten();
            let known: BTreeSet<Fingerprint> =
                known.filter(|pod| pod.is_alive()).map(|pod| fingerprint(pod)).collect();
            if listed != known {
                tracing::debug!(
                    policy = policy.name,
                    role = role.name,
                    "pods changed since they were observed"
                );
                return false;
            }
        }
        true
    }
}
