//! Watches the policies of a namespace, and the topologies that they name. The cluster may not define either
//! kind (yet).

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::policy_store::ObjectUpdate;
use crate::capacity::resource::{GROUP, POLICIES, TOPOLOGIES, VERSION};
use crate::cluster::{Change, Cluster, Collection, Missing, WatchStatus, Watched, follow_once_defined};

/// Policy objects of a namespace, not listed yet.
#[derive(Debug)]
pub struct PolicyObjects {
    /// Connection to the API server.
    pub cluster: Cluster,
    /// Namespace of the policies.
    pub namespace: String,
    /// Pool of this picker.
    pub pool: String,
    /// Names of the topologies in policies.
    pub wanted: Arc<watch::Sender<BTreeSet<String>>>,
    /// Watch status of the policies.
    pub watch_status: Arc<WatchStatus>,
    /// Watch status of the topologies.
    pub topologies: Arc<WatchStatus>,
}

impl PolicyObjects {
    /// Sends all objects and every change, until the receiver is dropped. Topologies are watched only while
    /// policies name some, so no right to read them is needed otherwise.
    pub(in crate::scaling) async fn follow<M: Send>(
        self,
        sender: mpsc::Sender<M>,
        update: impl Fn(ObjectUpdate) -> M + Copy + Send + Sync,
    ) {
        let of_policies = |change| update(ObjectUpdate::Policies(change));
        let of_topologies = |change| update(ObjectUpdate::Topologies(change));
        let policies = Collection::new(GROUP, VERSION, &self.namespace, POLICIES);
        let topologies = Collection::everywhere(GROUP, VERSION, TOPOLOGIES);
        tokio::join!(
            whenever_defined(&self.cluster, &policies, &self.watch_status, &sender, of_policies),
            async {
                let mut wanted = self.wanted.subscribe();
                while wanted.wait_for(|names| !names.is_empty()).await.is_ok() {
                    let following = whenever_defined(
                        &self.cluster,
                        &topologies,
                        &self.topologies,
                        &sender,
                        of_topologies,
                    );
                    let mut until = wanted.clone();
                    tokio::select! {
                        () = following => return,
                        _ = until.wait_for(BTreeSet::is_empty) => {}
                    }
                }
            }
        );
    }
}

/// Watches a collection, and waits until the cluster defines its kind. Ends when the receiver is dropped.
pub(super) async fn whenever_defined<T: Watched, M: Send>(
    cluster: &Cluster,
    collection: &Collection,
    watch_status: &WatchStatus,
    to: &mpsc::Sender<M>,
    update: impl Fn(Change<T>) -> M + Copy + Send + Sync,
) {
    let sender = || {
        tracing::warn!(
            path = collection.path(),
            "the cluster does not define this kind; install the CRDs from deploy/chart/crds or `usher capacity crds`"
        );
    };
    follow_once_defined(cluster, collection, watch_status, to, update, Missing::IsEmpty(&sender)).await;
}
