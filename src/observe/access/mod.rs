//! Access to what a port serves, as the API server of Kubernetes decides it.
//!
//! A bearer token goes to a TokenReview, which says whose it is; a client certificate says
//! so itself, as TLS has checked it. A SubjectAccessReview then says whether they may get
//! the path. When the API server can't be asked, nobody may whom it hasn't just allowed.

mod kubernetes;
mod review_cache;
mod reviews;

use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::hmac;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use prometheus::{IntCounterVec, Opts, Registry};
use tokio::sync::Semaphore;

use crate::cluster::{Cluster, Problem};
use crate::endpoints::Clock;

use kubernetes::{User, review_access, review_token};
use review_cache::{CacheTtl, Key};
use reviews::Reviews;

/// Reviews under way at a time. A scraper needs two, one after the other, once a minute.
const MOST_REVIEWS: usize = 16;

/// Time for which the owner of a token counts. llm-d-router's time for yes; it remembers a no
/// for as long, while ours lets somebody in soon who is created late.
const TOKENS: CacheTtl = CacheTtl { yes: Duration::from_secs(60), no: Duration::from_secs(30) };

/// Time for which rights count. llm-d-router's times.
const RIGHTS: CacheTtl = CacheTtl { yes: Duration::from_secs(300), no: Duration::from_secs(30) };

/// Shortest time between two log lines with one complaint.
const COMPLAINT: Duration = Duration::from_secs(300);

/// Reason that a client may not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// User unknown: no token and no certificate, or an invalid token.
    Unauthenticated,
    /// User without the right.
    Denied(String),
    /// The API server could not be asked.
    Unavailable,
}

impl Refusal {
    /// All there are, as a label of the counter.
    const REASONS: [&str; 3] = ["unauthenticated", "denied", "unavailable"];

    fn reason(&self) -> &'static str {
        let [unauthenticated, denied, unavailable] = Self::REASONS;
        match self {
            Self::Unauthenticated => unauthenticated,
            Self::Denied(_) => denied,
            Self::Unavailable => unavailable,
        }
    }
}

/// Counters of refusals. Shared by all who ask.
#[derive(Clone, Debug)]
pub struct Refusals {
    total: IntCounterVec,
}

impl Refusals {
    /// Registers `usher_metrics_refused_total`, with all its reasons from the start.
    ///
    /// # Errors
    /// `prometheus::Error` if the metric's name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "usher_metrics_refused_total",
            "Requests for metrics that were refused: unauthenticated (401), denied (403), or unavailable (503), as the Kubernetes API server could not be asked.",
        );
        let total = IntCounterVec::new(opts, &["reason"])?;
        Refusal::REASONS.iter().for_each(|reason| drop(total.with_label_values(&[*reason])));
        registry.register(Box::new(total.clone()))?;
        Ok(Self { total })
    }

    fn count(&self, refusal: &Refusal) {
        self.total.with_label_values(&[refusal.reason()]).inc();
    }
}

/// Reviews readers' access.
pub struct Access {
    cluster: Cluster,
    /// Makes keys. Its own key is drawn at the start, so that hashes mean nothing elsewhere.
    hash: hmac::Key,
    tokens: Arc<Reviews<Arc<User>>>,
    rights: Arc<Reviews<()>>,
    complaints: Complaints,
    refusals: Refusals,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

impl Access {
    /// Asks this cluster.
    #[must_use]
    pub fn new(cluster: Cluster, clock: &Clock, refusals: Refusals) -> Self {
        let turns = Arc::new(Semaphore::new(MOST_REVIEWS));
        Self {
            cluster,
            hash: hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; 32]>()),
            tokens: Reviews::new(TOKENS, Arc::clone(&turns), clock.clone()),
            rights: Reviews::new(RIGHTS, turns, clock.clone()),
            complaints: Complaints { clock: clock.clone(), last: Mutex::new(None) },
            refusals,
        }
    }

    /// Checks that somebody may do `verb` with `path`, who sends these headers and has
    /// shown this certificate (DER, checked). A token counts before the certificate.
    ///
    /// Takes at most 18 seconds, and 8 unless many reviews are under way.
    ///
    /// # Errors
    /// Returns an error if the user is unknown or unauthorized, or the API server can't be reached.
    pub async fn check(
        &self,
        headers: &HeaderMap,
        certificate: Option<&[u8]>,
        verb: &str,
        path: &str,
    ) -> Result<(), Refusal> {
        let checked = self.review(headers, certificate, verb, path).await;
        checked.inspect_err(|refusal| self.refusals.count(refusal))
    }

    async fn review(
        &self,
        headers: &HeaderMap,
        certificate: Option<&[u8]>,
        verb: &str,
        path: &str,
    ) -> Result<(), Refusal> {
        let user = match bearer(headers) {
            Some(token) => {
                let key = self.key(token.as_bytes());
                let review = || {
                    let reviewed = review_token(self.cluster.clone(), token.to_owned());
                    async { Ok(reviewed.await?.map(Arc::new)) }
                };
                self.heard("tokenreviews", self.tokens.ask(key, review).await)?
            }
            None => certificate.and_then(User::of_certificate).map(Arc::new),
        };
        let user = user.ok_or(Refusal::Unauthenticated)?;
        let spec = user.may(verb, path);
        let asked = serde_json::to_vec(&spec).map_err(|_| Refusal::Unavailable)?;
        let review = || review_access(self.cluster.clone(), spec);
        let allowed = self.rights.ask(self.key(&asked), review).await;
        let allowed = self.heard("subjectaccessreviews", allowed)?;
        allowed.ok_or_else(|| Refusal::Denied(user.name.clone()))
    }

    fn heard<V>(
        &self,
        resource: &'static str,
        response: Result<Option<V>, Problem>,
    ) -> Result<Option<V>, Refusal> {
        response.map_err(|problem| {
            self.complaints.about(resource, &problem);
            Refusal::Unavailable
        })
    }

    fn key(&self, about: &[u8]) -> Key {
        let mut key = Key::default();
        let tag = hmac::sign(&self.hash, about);
        key.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
        key
    }
}

/// The token of an `authorization` header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && !token.contains(' ')).then_some(token)
}

/// Logs problems of reviews, and not at every request.
struct Complaints {
    clock: Clock,
    // Guards what was last said, and when.
    last: Mutex<Option<(Discriminant<Problem>, Duration)>>,
}

impl Complaints {
    fn about(&self, resource: &'static str, problem: &Problem) {
        if !self.is_due(problem) {
            return;
        }
        match problem {
            Problem::Denied(message) => tracing::error!(
                resource,
                message,
                "access denied to the Kubernetes API for authorizing metrics readers, so all are rejected; allow the verb create for tokenreviews (authentication.k8s.io) and subjectaccessreviews (authorization.k8s.io) in a ClusterRole of the picker, or give --metrics-endpoint-auth=false"
            ),
            _ => tracing::warn!(
                resource,
                %problem,
                "cannot authorize metrics readers with the Kubernetes API server; only recently allowed readers may read"
            ),
        }
    }

    fn is_due(&self, problem: &Problem) -> bool {
        let (kind, now) = (discriminant(problem), self.clock.elapsed());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let said = last.is_some_and(|(before, when)| before == kind && now < when + COMPLAINT);
        if !said {
            *last = Some((kind, now));
        }
        !said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_read_as_the_api_server_reads_it() {
        // header, token
        let table = [
            ("Bearer abc", Some("abc")),
            ("bearer abc ", Some("abc")),
            ("BEARER  abc", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Bearer a b", None),
            ("Basic abc", None),
            ("abc", None),
            ("Bearer abc\u{e4}", None),
        ];
        for (header, token) in table {
            let value = http::HeaderValue::from_bytes(header.as_bytes()).unwrap();
            let headers = [(AUTHORIZATION, value)].into_iter().collect();
            assert_eq!(bearer(&headers), token, "{header:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    #[test]
    fn the_same_complaint_is_made_once_in_a_while() {
        let clock = Clock::stopped();
        let complaints = Complaints { clock: clock.clone(), last: Mutex::new(None) };
        let unreachable = |text: &str| Problem::Unreachable(text.to_owned());
        assert!(complaints.is_due(&unreachable("a")));
        assert!(!complaints.is_due(&unreachable("b")), "whatever the words");
        assert!(complaints.is_due(&Problem::Denied(String::new())));
        assert!(!complaints.is_due(&Problem::Denied(String::new())));
        clock.set(COMPLAINT);
        assert!(complaints.is_due(&Problem::Denied(String::new())));
    }
}
