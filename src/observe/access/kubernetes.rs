//! The two reviews by the API server: TokenReview and SubjectAccessReview.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Method;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};

use crate::cluster::{Cluster, Problem};
use crate::tls::subject::Subject;

/// Time for the response to one review. A scraper waits ten seconds by default, for both.
const REVIEW: Duration = Duration::from_secs(4);

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// Group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";

/// The user who sends a request, as Kubernetes knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: Option<BTreeMap<String, Vec<String>>>,
}

impl User {
    /// As Kubernetes reads client certificates: CN is the name, each O a group. `None`
    /// without a name.
    pub(super) fn of_certificate(certificate: &[u8]) -> Option<Self> {
        let Subject { common_name, organizations } = Subject::of(certificate)?;
        if common_name.is_empty() {
            return None;
        }
        Some(Self { name: common_name, groups: organizations, ..Self::default() }.authenticated())
    }

    fn authenticated(mut self) -> Self {
        if !self.groups.iter().any(|group| group == AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    /// The question whether they may do something with a path of this server.
    pub(super) fn may(&self, verb: &str, path: &str) -> SubjectAccessReviewSpec {
        SubjectAccessReviewSpec {
            user: Some(self.name.clone()),
            uid: self.uid.clone(),
            groups: Some(self.groups.clone()),
            extra: self.extra.clone(),
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some(verb.to_owned()),
            }),
            resource_attributes: None,
        }
    }
}

impl From<UserInfo> for User {
    fn from(info: UserInfo) -> Self {
        let UserInfo { username, uid, groups, extra } = info;
        Self { name: username.unwrap_or_default(), uid, groups: groups.unwrap_or_default(), extra }
            .authenticated()
    }
}

/// Owner of the token; `None`: unknown token.
pub(super) async fn review_token(cluster: Cluster, token: String) -> Result<Option<User>, Problem> {
    // Without audiences: those of the API server count.
    let spec = TokenReviewSpec { token: Some(token), audiences: None };
    let review: TokenReview =
        send(&cluster, TOKEN_REVIEWS, &TokenReview { spec, ..TokenReview::default() }).await?;
    let status = review.status.unwrap_or_default();
    if let Some(error) = &status.error {
        tracing::debug!(error, "a token was not accepted");
    }
    let accepted = status.authenticated == Some(true);
    Ok(status.user.filter(|_| accepted).map(User::from).filter(|user| !user.name.is_empty()))
}

/// Reviews access; `Some` is granted.
pub(super) async fn review_access(
    cluster: Cluster,
    spec: SubjectAccessReviewSpec,
) -> Result<Option<()>, Problem> {
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let SubjectAccessReview { spec, status, .. } = send(&cluster, ACCESS_REVIEWS, &review).await?;
    let status = status.unwrap_or_default();
    let allowed = status.allowed && status.denied != Some(true);
    if !allowed {
        let user = spec.user.unwrap_or_default();
        let reason = status.reason.as_deref().filter(|reason| !reason.is_empty());
        tracing::info!(
            user,
            reason,
            "may not read metrics; a ClusterRole with the verb get for the nonResourceURL would allow it"
        );
    }
    Ok(allowed.then_some(()))
}

async fn send<T>(cluster: &Cluster, path: &str, review: &T) -> Result<T, Problem>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    let body = serde_json::to_vec(review).map_err(|error| Problem::Unreadable(error.to_string()))?;
    cluster.put(Method::POST, path, body, REVIEW).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    fn certificate(parts: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        parts.iter().for_each(|(kind, value)| params.distinguished_name.push(kind.clone(), *value));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn a_certificate_names_a_user_and_its_groups() {
        let parts = [(DnType::CommonName, "prometheus"), (DnType::OrganizationName, "monitoring")];
        let user = User::of_certificate(&certificate(&parts)).unwrap();
        assert_eq!(user.name, "prometheus");
        assert_eq!(user.groups, ["monitoring", "system:authenticated"]);
        assert_eq!(User::of_certificate(&certificate(&[(DnType::OrganizationName, "monitoring")])), None);
        assert_eq!(User::of_certificate(b"nonsense"), None);
    }

    #[test]
    fn access_review_has_all_user_attributes() {
        let extra = BTreeMap::from([("k".to_owned(), vec!["v".to_owned()])]);
        let info = UserInfo {
            username: Some("u".to_owned()),
            uid: Some("1".to_owned()),
            groups: Some(vec!["g".to_owned(), AUTHENTICATED.to_owned()]),
            extra: Some(extra.clone()),
        };
        let spec = User::from(info).may("get", "/metrics");
        assert_eq!((spec.user.as_deref(), spec.uid.as_deref()), (Some("u"), Some("1")));
        assert_eq!(spec.groups.unwrap(), ["g", AUTHENTICATED]);
        assert_eq!(spec.extra, Some(extra));
        let asked = spec.non_resource_attributes.unwrap();
        assert_eq!((asked.verb.as_deref(), asked.path.as_deref()), (Some("get"), Some("/metrics")));
    }
}
