//! Combinations of plugins and settings that are known to work badly, each with a page that shows it.

mod finding;
mod profiles;
mod stages;
mod waiting;

use super::view::View;
use crate::registry::Resolved;

pub(super) use finding::Finding;

/// All that a configuration has. `stale`: notes of the pipeline on thresholds of staleness.
pub(super) fn of(resolved: &Resolved, stale: &[String]) -> Vec<Finding> {
    let view = View(resolved);
    let mut found: Vec<Finding> = resolved
        .profiles
        .iter()
        .flat_map(|profile| profiles::RULES.iter().filter_map(move |rule| rule(view, profile)))
        .collect();
    found.extend(stages::RULES.iter().filter_map(|rule| rule(view)));
    found.extend(waiting::RULES.iter().filter_map(|rule| rule(view)));
    found.extend(stale.iter().map(|note| Finding {
        rule: "stale-threshold",
        message: note.clone(),
        docs: "docs/guide/scraping.md#staleness",
    }));
    found
}
