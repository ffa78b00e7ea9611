//! The tasks that follow the kinds of objects and pass on what changes. Each goes on for
//! ever, or until nobody listens.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::cluster::{Backoff, Change, Cluster, Collection, Ended, Standing, Watched, follow};

use super::groups;
use super::types::{Object, POOL_VERSION, RULE_GROUPS, RULE_VERSION};
use super::view::{Asked, Input, PoolName};

/// How often it is asked whether a kind of objects is defined by now that was not.
const UNDEFINED: Duration = Duration::from_secs(3);

/// How often it is asked whether the preferred group defines a kind by now, while the
/// older one is followed.
const PREFERRED: Duration = Duration::from_secs(60);

/// Where a task passes on what it hears.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) cluster: Cluster,
    pub(super) tell: mpsc::Sender<Input>,
    pub(super) standing: Arc<Standing>,
}

impl Source {
    async fn follow<T: Watched>(
        &self,
        collection: &Collection,
        input: impl Fn(Change<T>) -> Input + Send + Sync,
    ) -> Ended {
        follow(&self.cluster, collection, &self.standing, &self.tell, input).await
    }

    /// Follows the pool of this name.
    pub(super) async fn pool(self, name: PoolName) {
        let collection = Collection::new(&name.group, POOL_VERSION, &name.namespace, "inferencepools");
        let collection = collection.named(&name.name);
        let mut missing = false;
        loop {
            if self.follow(&collection, Input::Pool).await == Ended::Unheard {
                return;
            }
            self.undefined();
            if !std::mem::replace(&mut missing, true) {
                tracing::error!(
                    group = name.group,
                    version = POOL_VERSION,
                    "the cluster does not define InferencePool (inferencepools); install the custom resource definitions of the Gateway API Inference Extension, or use --endpoint-selector"
                );
            }
            if self.tell.send(Input::Pool(Change::All(Vec::new()))).await.is_err() {
                return;
            }
            about(UNDEFINED).await;
        }
    }

    /// Follows the pods with these labels, as the answer to a question.
    pub(super) async fn pods(self, namespace: String, asked: Asked, selector: String) {
        let collection = Collection::new("", "v1", &namespace, "pods").with_labels(&selector);
        // Every API server has pods; one that says it hasn't is asked again.
        let input = |change| Input::Pods(asked, change);
        while self.follow(&collection, input).await == Ended::NotFound {
            about(UNDEFINED).await;
        }
    }

    /// Follows a kind of rules in whichever group defines it.
    pub(super) async fn rules<S>(
        self,
        namespace: String,
        plural: &'static str,
        input: fn(Change<Object<S>>) -> Input,
    ) where
        S: Clone + Send + DeserializeOwned + 'static,
    {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let mut told = None;
        loop {
            let found = match groups::find(&self.cluster, plural).await {
                Ok(found) => found,
                Err(problem) => {
                    self.standing.set_connected(false);
                    if backoff.failures() == 0 {
                        tracing::warn!(plural, %problem, "cannot ask the Kubernetes API server what it defines");
                    }
                    let pause = backoff.next(&mut rand::rng());
                    sleep(pause).await;
                    continue;
                }
            };
            backoff.reset();
            self.standing.heard();
            if told.replace(found) != Some(found) {
                tell_of(plural, found);
            }
            let Some(group) = found.group else {
                self.undefined();
                if self.tell.send(input(Change::All(Vec::new()))).await.is_err() {
                    return;
                }
                about(UNDEFINED).await;
                continue;
            };
            let collection = Collection::new(group, RULE_VERSION, &namespace, plural);
            let ended = tokio::select! {
                ended = self.follow(&collection, input) => ended,
                () = self.preferred_appears(group, plural) => Ended::NotFound,
            };
            self.standing.set_connected(false);
            if ended == Ended::Unheard {
                return;
            }
        }
    }

    /// The server has just said that it defines no such kind, and is asked again soon: that is
    /// as good as a watch, and nothing that an alert should be about.
    fn undefined(&self) {
        self.standing.heard();
        self.standing.set_connected(true);
    }

    /// Returns when the preferred group defines a kind that another one is followed for.
    async fn preferred_appears(&self, followed: &str, plural: &str) {
        if followed == RULE_GROUPS[0] {
            return std::future::pending().await;
        }
        loop {
            about(PREFERRED).await;
            if groups::is_preferred(&self.cluster, plural).await == Ok(true) {
                return;
            }
        }
    }
}

fn tell_of(plural: &str, found: groups::Found) {
    match found.group {
        None => tracing::info!(plural, "the cluster does not define this kind of objects; going on without"),
        Some(group) if found.ignores_older => {
            let ignored = RULE_GROUPS[1];
            tracing::warn!(
                plural,
                group,
                ignored,
                "two API groups define this kind; objects of the older one are ignored"
            );
        }
        Some(group) => tracing::info!(plural, group, "following this kind of objects"),
    }
}

/// Waits about that long, so that replicas don't ask all at once.
async fn about(pause: Duration) {
    let factor = rand::rng().random_range(0.8..1.2);
    sleep(pause.mul_f64(factor)).await;
}
