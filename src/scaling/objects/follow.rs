//! Follows the policies of a namespace, and the topologies that they name, in a cluster that may not
//! define either kind (yet).

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::policy_store::News;
use crate::capacity::resource::{GROUP, POLICIES, TOPOLOGIES, VERSION};
use crate::cluster::{Change, Cluster, Collection, Missing, WatchStatus, Watched, follow_once_defined};

/// The policies of a namespace, of which nothing is known yet.
#[derive(Debug)]
pub struct PolicyObjects {
    /// The API server.
    pub cluster: Cluster,
    /// Namespace of the policies.
    pub namespace: String,
    /// The pool whose picker this is.
    pub pool: String,
    /// The names of the topologies that policies name, for those who ask. Whoever judges policies writes it.
    pub wanted: Arc<watch::Sender<BTreeSet<String>>>,
    /// Watch status of the policies.
    pub watch_status: Arc<WatchStatus>,
    /// The same of topologies.
    pub topologies: Arc<WatchStatus>,
}

impl PolicyObjects {
    /// Sends all objects and every change, until the receiver is dropped. Topologies are followed while some
    /// are wanted: without, no right to read them is needed.
    pub(in crate::scaling) async fn follow<M: Send>(
        self,
        say: mpsc::Sender<M>,
        news: impl Fn(News) -> M + Copy + Send + Sync,
    ) {
        let of_policies = |change| news(News::Policies(change));
        let of_topologies = |change| news(News::Topologies(change));
        let policies = Collection::new(GROUP, VERSION, &self.namespace, POLICIES);
        let topologies = Collection::everywhere(GROUP, VERSION, TOPOLOGIES);
        tokio::join!(
            whenever_defined(&self.cluster, &policies, &self.watch_status, &say, of_policies),
            async {
                let mut wanted = self.wanted.subscribe();
                while wanted.wait_for(|names| !names.is_empty()).await.is_ok() {
                    let following =
                        whenever_defined(&self.cluster, &topologies, &self.topologies, &say, of_topologies);
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

/// Follows a collection, and waits for its kind where the cluster doesn't define it. Ends when nobody
/// listens.
pub(super) async fn whenever_defined<T: Watched, M: Send>(
    cluster: &Cluster,
    collection: &Collection,
    watch_status: &WatchStatus,
    to: &mpsc::Sender<M>,
    news: impl Fn(Change<T>) -> M + Copy + Send + Sync,
) {
    let say = || {
        tracing::warn!(
            path = collection.path(),
            "the cluster does not define this kind; install the CRDs from deploy/chart/crds or `usher capacity crds`"
        );
    };
    follow_once_defined(cluster, collection, watch_status, to, news, Missing::IsEmpty(&say)).await;
}
