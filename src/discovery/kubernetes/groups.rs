//! Chooses among the API groups that define a kind of objects to follow.

use serde::Deserialize;

use crate::cluster::{Cluster, Problem};

use super::types::{RULE_GROUPS, RULE_VERSION};

/// API group that defines a kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The group to follow: the newer one where both define the kind.
    pub(super) group: Option<&'static str>,
    /// The older group defines it, too. Its objects are ignored.
    pub(super) ignores_older: bool,
}

/// Finds the API groups that define `plural`.
///
/// # Errors
/// `Problem` if the server doesn't respond, or with an error.
pub(super) async fn find(cluster: &Cluster, plural: &str) -> Result<Found, Problem> {
    let [newer, older] = RULE_GROUPS;
    Ok(choose(defines(cluster, newer, plural).await?, defines(cluster, older, plural).await?))
}

/// Returns `true` if the preferred group defines `plural`.
///
/// # Errors
/// `Problem` if the server doesn't respond, or with an error.
pub(super) async fn is_preferred(cluster: &Cluster, plural: &str) -> Result<bool, Problem> {
    defines(cluster, RULE_GROUPS[0], plural).await
}

fn choose(newer: bool, older: bool) -> Found {
    let group = match (newer, older) {
        (true, _) => Some(RULE_GROUPS[0]),
        (false, true) => Some(RULE_GROUPS[1]),
        (false, false) => None,
    };
    Found { group, ignores_older: newer && older }
}

async fn defines(cluster: &Cluster, group: &str, plural: &str) -> Result<bool, Problem> {
    #[derive(Deserialize)]
    struct Kinds {
        #[serde(default)]
        resources: Vec<Kind>,
    }
    #[derive(Deserialize)]
    struct Kind {
        name: String,
    }
    match cluster.get::<Kinds>(&format!("/apis/{group}/{RULE_VERSION}")).await {
        Ok(kinds) => Ok(kinds.resources.iter().any(|kind| kind.name == plural)),
        Err(Problem::NotFound(_)) => Ok(false),
        Err(problem) => Err(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_group_goes_before_the_older() {
        // newer, older, group, ignores older
        let table = [
            (true, true, Some("llm-d.ai"), true),
            (true, false, Some("llm-d.ai"), false),
            (false, true, Some("inference.networking.x-k8s.io"), false),
            (false, false, None, false),
        ];
        for (newer, older, group, ignores_older) in table {
            assert_eq!(choose(newer, older), Found { group, ignores_older });
        }
    }
}
