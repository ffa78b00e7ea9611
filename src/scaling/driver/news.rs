//! What is said of policies, and what comes of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tracing::{info, warn};

use super::Driver;
use crate::scaling::file::{Look, joined};
use crate::scaling::groups::Groups;
use crate::scaling::objects::{self, Changed, Known};

impl Driver {
    /// Takes in what a file says.
    pub(super) async fn look(&mut self, look: Look, name: &str) {
        let groups =
            look.and_then(|text| Groups::read(&text, &self.sources).map_err(|errors| joined(&errors, name)));
        match groups {
            Ok(groups) => {
                let policies = groups.groups.len();
                self.take(groups);
                self.read().await;
                info!(policies, file = name, "capacity policies read");
                self.metrics.reloaded(true);
            }
            Err(error) => {
                warn!(error, "capacity policies can't be used, keeping the last ones");
                self.metrics.reloaded(false);
            }
        }
    }

    /// Takes in what the API server said.
    pub(super) async fn hear(&mut self, news: objects::News, wants: &watch::Sender<BTreeSet<String>>) {
        match self.shelf.apply(news) {
            Changed::Nothing => {}
            Changed::Status => {
                self.objects = self.shelf.known().into();
                self.put();
            }
            Changed::Policies => {
                let wanted = self.shelf.wanted_topologies();
                wants.send_if_modified(|before| {
                    let is_new = *before != wanted;
                    *before = wanted;
                    is_new
                });
                let groups = self.shelf.settle(&self.sources);
                let known: Arc<[Known]> = self.shelf.known().into();
                for policy in known.iter() {
                    let before = self.objects.iter().find(|before| before.uid == policy.uid);
                    if before.is_none_or(|before| before.verdict != policy.verdict) {
                        let (name, reason, why) =
                            (&policy.name, policy.verdict.reason, &policy.verdict.message);
                        if policy.verdict.is_accepted {
                            info!(policy = name, reason, why, "capacity policy taken");
                        } else {
                            warn!(policy = name, reason, why, "capacity policy can't be used");
                        }
                    }
                }
                self.objects = known;
                self.take(groups);
                self.read().await;
            }
        }
    }
}
