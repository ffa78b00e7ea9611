//! The Lease object: how an election reads and writes it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

use super::election::{Election, Record};
use super::revision::Candidate;
use crate::cluster::Collection;

/// Seconds for which others wait after a lease that was given up; the API has no zero.
const GIVEN_UP: i32 = 1;

/// Annotations of the Lease in which replicas publish what its fields have no place
/// for: who leads, and who asks to. `preferredHolder` of newer API servers would be one for
/// the latter, but comes only together with a strategy, by which the server itself chooses.
const LEADER: &str = "usher/leader";
const ASKS: &str = "usher/asks";

/// Name of the Lease that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl LeaseName {
    /// The lease of a pool's pickers; llm-d-router's name, so that replicas of both elect one.
    pub fn of_pool(namespace: &str, pool: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: format!("epp-{namespace}-{pool}.llm-d.ai") }
    }

    pub(super) fn collection(&self) -> Collection {
        Collection::new("coordination.k8s.io", "v1", &self.namespace, "leases").named(&self.name)
    }

    pub(super) fn folder(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.folder(), self.name)
    }
}

/// Record that a lease holds.
pub(super) fn record(lease: &Lease) -> Record {
    let spec = lease.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref());
    // Text that makes no sense is that of somebody who doesn't mean us.
    let candidate = |name| -> Option<Candidate> {
        serde_json::from_str(lease.metadata.annotations.as_ref()?.get(name)?).ok()
    };
    Record {
        holder: spec.and_then(|spec| spec.holder_identity.clone()).unwrap_or_default(),
        lease: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
        renewed: renewed.map(|time| time.0.to_string()).unwrap_or_default(),
        leader: candidate(LEADER),
        asks: candidate(ASKS),
    }
}

/// The lease that is there, or an empty one.
fn known(known: Option<&Lease>, name: &LeaseName) -> Lease {
    known.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(name.name.clone()),
            namespace: Some(name.namespace.clone()),
            ..ObjectMeta::default()
        },
        spec: None,
    })
}

/// The lease as it is when we hold it, made from the one that is there.
pub(super) fn taken(there: Option<&Lease>, name: &LeaseName, election: &Election) -> Lease {
    let mut lease = held_by(election.identity(), there, name, election);
    annotate(&mut lease, LEADER, election.candidate().as_ref());
    annotate(&mut lease, ASKS, None);
    lease
}

/// The lease as it is when another holds it who has yet to say that it leads.
pub(super) fn handed(there: Option<&Lease>, name: &LeaseName, election: &Election, to: &str) -> Lease {
    let mut lease = held_by(to, there, name, election);
    annotate(&mut lease, ASKS, None);
    lease
}

/// The lease that another holds, with our wish to have it.
pub(super) fn asking(there: Option<&Lease>, name: &LeaseName, election: &Election) -> Lease {
    let mut lease = known(there, name);
    annotate(&mut lease, ASKS, election.candidate().as_ref());
    lease
}

fn held_by(holder: &str, there: Option<&Lease>, name: &LeaseName, election: &Election) -> Lease {
    let mut lease = known(there, name);
    let now = MicroTime(Timestamp::now());
    let spec: &mut LeaseSpec = lease.spec.get_or_insert_default();
    if spec.holder_identity.as_deref() != Some(holder) {
        spec.holder_identity = Some(holder.to_owned());
        spec.acquire_time = Some(now.clone());
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |before| before.saturating_add(1)));
    }
    spec.renew_time = Some(now);
    let seconds = election.timing().lease.as_secs();
    spec.lease_duration_seconds = Some(i32::try_from(seconds).unwrap_or(i32::MAX));
    lease
}

/// Sets an annotation, or removes it.
fn annotate(lease: &mut Lease, name: &str, candidate: Option<&Candidate>) {
    let annotations = lease.metadata.annotations.get_or_insert_default();
    match candidate.and_then(|candidate| serde_json::to_string(candidate).ok()) {
        Some(text) => {
            annotations.insert(name.to_owned(), text);
        }
        None => {
            annotations.remove(name);
        }
    }
}

/// The lease without a holder.
pub(super) fn given_up(mut lease: Lease) -> Lease {
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(GIVEN_UP);
    spec.renew_time = Some(MicroTime(Timestamp::now()));
    lease
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::{Revision, Timing};

    fn name() -> LeaseName {
        LeaseName::of_pool("ns", "p")
    }

    fn election(name: &str, hash: &str) -> Election {
        let mut election = Election::new(name.to_owned(), Timing::default());
        let created = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
        election.set_revision(Some(Revision { hash: hash.to_owned(), created }));
        election
    }

    #[test]
    fn taking_a_lease_keeps_foreign_fields_and_counts_transitions() {
        let path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/epp-ns-p.llm-d.ai";
        assert_eq!(name().path(), path);
        let a = election("a", "x");
        let mut first = taken(None, &name(), &a);
        let spec = first.spec.clone().unwrap();
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("a"), Some(0)));
        assert_eq!((spec.lease_duration_seconds, spec.acquire_time == spec.renew_time), (Some(4), true));
        first.metadata.resource_version = Some("7".to_owned());
        first.metadata.labels = Some([("k".to_owned(), "v".to_owned())].into());
        let again = taken(Some(&first), &name(), &a).spec.unwrap();
        assert_eq!((again.lease_transitions, again.acquire_time), (Some(0), spec.acquire_time));
        let b = taken(Some(&first), &name(), &election("b", "x"));
        assert_eq!(
            (&b.metadata.labels, &b.metadata.resource_version),
            (&first.metadata.labels, &Some("7".to_owned()))
        );
        assert_eq!(b.spec.as_ref().unwrap().lease_transitions, Some(1));
        let seen = record(&b);
        assert_eq!((seen.holder.as_str(), seen.lease), ("b", Duration::from_secs(4)));
        let given = record(&given_up(b));
        assert_eq!((given.holder.as_str(), given.lease), ("", Duration::from_secs(1)));
    }

    #[test]
    fn asking_keeps_the_holder_and_handover_changes_it() {
        let (a, b) = (election("a", "x"), election("b", "y"));
        let held = taken(None, &name(), &a);
        assert_eq!((record(&held).leader, record(&held).asks), (a.candidate(), None));
        let asked = asking(Some(&held), &name(), &b);
        assert_eq!(asked.spec, held.spec);
        assert_eq!((record(&asked).leader, record(&asked).asks), (a.candidate(), b.candidate()));
        let handed = handed(Some(&asked), &name(), &a, "b");
        let seen = record(&handed);
        assert_eq!((seen.holder.as_str(), seen.leader, seen.asks), ("b", a.candidate(), None));
        let spec = handed.spec.as_ref().unwrap();
        assert_eq!((spec.lease_transitions, spec.acquire_time == spec.renew_time), (Some(1), true));
        let led = taken(Some(&handed), &name(), &b);
        assert_eq!(led.spec.as_ref().unwrap().lease_transitions, Some(1));
        assert_eq!((record(&led).leader, record(&led).asks), (b.candidate(), None));
        // Who knows no revision doesn't leave another's there.
        let plain = Election::new("c".to_owned(), Timing::default());
        assert_eq!(record(&taken(Some(&asked), &name(), &plain)).leader, None);
    }

    #[test]
    fn invalid_annotations_are_ignored() {
        let mut lease = taken(None, &name(), &election("a", "x"));
        for text in ["", "b", "{}", r#"{"identity":"b","revision":"y","created":"yesterday"}"#] {
            lease.metadata.annotations = Some([(ASKS.to_owned(), text.to_owned())].into());
            assert_eq!(record(&lease).asks, None, "{text:?}");
        }
    }
}
