//! The tasks that follow the kinds of objects and pass on what changes. Each goes on for
//! ever, or until nobody listens.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::cluster::{
    Backoff, Change, Cluster, Collection, Ended, FIRST_PAUSE, LONGEST_PAUSE, Missing, UNDEFINED, WatchStatus,
    Watched, about, follow, follow_once_defined,
};

use super::groups;
use super::types::{Object, POOL_VERSION, RULE_GROUPS, RULE_VERSION};
use super::view::{Asked, Input, PoolName};

/// Interval at which it is asked whether the preferred group defines a kind by now, while
/// the older one is followed.
const PREFERRED: Duration = Duration::from_secs(60);

/// Receiver of what a task hears.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) cluster: Cluster,
    pub(super) sender: mpsc::Sender<Input>,
    pub(super) watch_status: Arc<WatchStatus>,
}

impl Source {
    /// Follows the pool of this name.
    pub(super) async fn pool(self, name: PoolName) {
        let collection = Collection::new(&name.group, POOL_VERSION, &name.namespace, "inferencepools");
        let collection = collection.named(&name.name);
        let say = || {
            tracing::error!(
                group = name.group,
                version = POOL_VERSION,
                "the cluster does not define InferencePool (inferencepools); install the custom resource definitions of the Gateway API Inference Extension, or use --endpoint-selector"
            );
        };
        self.once_defined(&collection, Input::Pool, Missing::IsEmpty(&say)).await;
    }

    /// Follows the pods with these labels, as the result of a question.
    pub(super) async fn pods(self, namespace: String, asked: Asked, selector: String) {
        let collection = Collection::new("", "v1", &namespace, "pods").with_labels(&selector);
        self.once_defined(&collection, |change| Input::Pods(asked, change), Missing::IsTrouble).await;
    }

    async fn once_defined<T: Watched>(
        &self,
        collection: &Collection,
        input: impl Fn(Change<T>) -> Input + Send + Sync,
        missing: Missing<'_>,
    ) {
        follow_once_defined(&self.cluster, collection, &self.watch_status, &self.sender, input, missing)
            .await;
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
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut logged = None;
        loop {
            let found = match groups::find(&self.cluster, plural).await {
                Ok(found) => found,
                Err(problem) => {
                    self.watch_status.set_connected(false);
                    if backoff.failures() == 0 {
                        tracing::warn!(plural, %problem, "cannot list the resources that the Kubernetes API server defines; trying again");
                    }
                    let pause = backoff.after(Some(&problem), &mut rand::rng());
                    sleep(pause).await;
                    continue;
                }
            };
            backoff.reset();
            self.watch_status.heard();
            if logged.replace(found) != Some(found) {
                log_group(plural, found);
            }
            let Some(group) = found.group else {
                self.watch_status.undefined();
                if self.sender.send(input(Change::All(Vec::new()))).await.is_err() {
                    return;
                }
                about(UNDEFINED).await;
                continue;
            };
            let collection = Collection::new(group, RULE_VERSION, &namespace, plural);
            let ended = tokio::select! {
                ended = follow(&self.cluster, &collection, &self.watch_status, &self.sender, input) => ended,
                () = self.preferred_appears(group, plural) => Ended::NotFound,
            };
            self.watch_status.set_connected(false);
            if ended == Ended::Unheard {
                return;
            }
        }
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

fn log_group(plural: &str, found: groups::Found) {
    match found.group {
        None => tracing::info!(
            plural,
            "the cluster does not define this kind of objects; continuing without them"
        ),
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
