//! Two configurations: what changes in behaviour. Names, texts and defaults that are written out don't count.

mod change;
mod pairs;
mod parameters;
mod settings;

use std::fmt::{self, Display, Formatter};

use serde::Serialize;
use usher_terminal::fit;

use super::findings::Finding;
use super::view::{View, percent, plain, total_weight};
use crate::registry::{Resolved, ResolvedProfile, ResolvedScorer};
use change::Change;
use pairs::Pairs;

/// All changes between two configurations.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Comparison {
    pub(super) old: String,
    pub(super) new: String,
    pub(super) changes: Vec<Change>,
    /// Bad combinations that only the new one has.
    pub(super) new_findings: Vec<Finding>,
    /// Bad combinations that only the old one has.
    pub(super) resolved_findings: Vec<Finding>,
}

/// Compares two configurations, each with its name and its findings.
pub(super) fn compare(
    (old_name, old, old_findings): (&str, &Resolved, &[Finding]),
    (new_name, new, new_findings): (&str, &Resolved, &[Finding]),
) -> Comparison {
    // A single profile is the same under another name, which messages have.
    let has_one = |config: &Resolved| config.profiles.len() == 1;
    let by_rule = has_one(old) && has_one(new);
    let is_same = |one: &Finding, other: &Finding| one == other || by_rule && one.rule == other.rule;
    let only = |these: &[Finding], others: &[Finding]| {
        let is_new = |finding: &&Finding| !others.iter().any(|other| is_same(finding, other));
        these.iter().filter(is_new).cloned().collect()
    };
    Comparison {
        old: old_name.to_owned(),
        new: new_name.to_owned(),
        changes: changes(old, new),
        new_findings: only(new_findings, old_findings),
        resolved_findings: only(old_findings, new_findings),
    }
}

fn changes(old: &Resolved, new: &Resolved) -> Vec<Change> {
    let (old, new) = (View(old), View(new));
    let pairs = Pairs::of(old, new);
    let mut changes = profiles(&pairs);
    changes.extend(settings::changes(&pairs));
    changes.extend(parameters::changes(&pairs));
    changes
}

/// Changes of the profiles. A single profile is the same under another name.
fn profiles(pairs: &Pairs<'_>) -> Vec<Change> {
    let (old, new) = (&pairs.old.0.profiles, &pairs.new.0.profiles);
    if let ([old], [new]) = (&old[..], &new[..]) {
        return profile(pairs, old, new);
    }
    let find = |profiles: &'_ [ResolvedProfile], name: &str| profiles.iter().any(|other| other.name == name);
    let gone = old.iter().filter(|profile| !find(new, &profile.name));
    let mut changes: Vec<Change> =
        gone.map(|profile| Change::removed("profiles", profile.name.as_str(), "")).collect();
    for profile_now in new {
        match old.iter().find(|other| other.name == profile_now.name) {
            Some(before) => changes.extend(profile(pairs, before, profile_now)),
            None => {
                let scorers: Vec<&str> = profile_now.scorers.iter().map(|s| s.plugin.as_str()).collect();
                let parts = [profile_now.filters.join(", "), scorers.join(", ")];
                let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
                changes.push(Change::added("profiles", profile_now.name.as_str(), parts.join("; ")));
            }
        }
    }
    changes
}

fn profile(pairs: &Pairs<'_>, old: &ResolvedProfile, new: &ResolvedProfile) -> Vec<Change> {
    let place = format!("profile {}", new.name);
    let mut changes = pairs.list(&place, "filter", &old.filters, &new.filters, true);
    let find = |scorer: &ResolvedScorer| {
        old.scorers.iter().find(|other| pairs.is_same(&other.plugin, &scorer.plugin))
    };
    for scorer in &old.scorers {
        if !new.scorers.iter().any(|other| pairs.is_same(&scorer.plugin, &other.plugin)) {
            let text = format!("{}. {}", weight(scorer, old), pairs.old.summary(&scorer.plugin));
            changes.push(Change::removed(&place, format!("scorer {}", scorer.plugin), text));
        }
    }
    for scorer in &new.scorers {
        let what = format!("scorer {}", scorer.plugin);
        match find(scorer) {
            None => {
                let text = format!("{}. {}", weight(scorer, new), pairs.new.summary(&scorer.plugin));
                changes.push(Change::added(&place, what, text));
            }
            Some(before) if (share(before, old) - share(scorer, new)).abs() > 1e-6 => {
                changes.push(Change::changed(&place, what, weight(before, old), weight(scorer, new)));
            }
            Some(_) => {}
        }
    }
    changes.extend(pairs.one(&place, "picker", &old.picker.plugin, &new.picker.plugin));
    changes
}

/// Part of the total that a scorer decides. All weights times a number change nothing.
fn share(scorer: &ResolvedScorer, profile: &ResolvedProfile) -> f64 {
    let total = total_weight(profile);
    if total > 0.0 { scorer.weight / total } else { 0.0 }
}

fn weight(scorer: &ResolvedScorer, profile: &ResolvedProfile) -> String {
    let (weight, total) = (plain(scorer.weight), plain(total_weight(profile)));
    format!("{weight} of {total}, {}", percent(share(scorer, profile)))
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let width = f.width();
        let mut item = |indent: &str, text: &str| -> fmt::Result {
            // Lines below the first stand behind the sign.
            for (at, line) in fit(text, width, indent.len() + 2).iter().enumerate() {
                let more = if at > 0 { "  " } else { "" };
                writeln!(f, "{indent}{more}{line}")?;
            }
            Ok(())
        };
        let count = match self.changes.len() {
            0 => "no change in behaviour".to_owned(),
            1 => "1 change in behaviour".to_owned(),
            count => format!("{count} changes in behaviour"),
        };
        item("", &format!("{} → {}: {count}", self.old, self.new))?;
        let mut place = "";
        for change in &self.changes {
            if change.place != place {
                item("", "")?;
                item("", &change.place)?;
                place = &change.place;
            }
            item("  ", &change.text())?;
        }
        for (title, findings) in
            [("new warnings", &self.new_findings), ("warnings that are gone", &self.resolved_findings)]
        {
            if !findings.is_empty() {
                item("", "")?;
                item("", title)?;
            }
            findings.iter().try_for_each(|finding| item("  ", &format!("- {}", finding.text())))?;
        }
        Ok(())
    }
}
