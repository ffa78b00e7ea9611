//! Plugins of two configurations that take each other's place.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;
use usher_plugin::Kind;

use super::change::Change;
use crate::cli::check::view::View;

/// Kinds that act without being named anywhere.
const UNNAMED: [Kind; 1] = [Kind::Response];

/// Two configurations, and which plugin of the new one stands for which of the old one.
pub(super) struct Pairs<'a> {
    pub(super) old: View<'a>,
    pub(super) new: View<'a>,
    /// Names in the new one by those in the old one.
    names: HashMap<&'a str, &'a str>,
}

impl<'a> Pairs<'a> {
    /// Plugins of one name, then those that are the only ones of their type on both sides.
    pub(super) fn of(old: View<'a>, new: View<'a>) -> Self {
        let (before, now) = (in_use(old), in_use(new));
        let mut names: HashMap<&str, &str> = before.intersection(&now).map(|name| (*name, *name)).collect();
        let only = |view: View<'a>, all: &BTreeSet<&'a str>, others: &BTreeSet<&'a str>, of: &str| {
            let mut left =
                all.iter().filter(|name| !others.contains(*name) && view.type_of(name) == of).copied();
            left.next().filter(|_| left.next().is_none())
        };
        for name in before.difference(&now).copied() {
            let of = old.type_of(name);
            if only(old, &before, &now, of) == Some(name)
                && let Some(other) = only(new, &now, &before, of)
            {
                names.insert(name, other);
            }
        }
        Self { old, new, names }
    }

    /// Returns `true` if a plugin of the old configuration is this one of the new configuration.
    pub(super) fn is_same(&self, old: &str, new: &str) -> bool {
        self.names.get(old) == Some(&new)
    }

    /// Name in the new configuration of a plugin of the old one.
    pub(super) fn renamed(&self, old: &str) -> Option<&'a str> {
        self.names.get(old).copied()
    }

    /// Pairs in the order of their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let sorted: BTreeSet<_> = self.names.iter().map(|(old, new)| (*old, *new)).collect();
        sorted.into_iter()
    }

    /// Changes of a list of plugins; of their order, too, where that counts.
    pub(super) fn list(
        &self,
        place: &str,
        what: &str,
        old: &[String],
        new: &[String],
        is_ordered: bool,
    ) -> Vec<Change> {
        let in_new = |name: &&String| new.iter().any(|other| self.is_same(name, other));
        let in_old = |name: &&String| old.iter().any(|other| self.is_same(other, name));
        let gone = old.iter().filter(|name| !in_new(name));
        let mut changes: Vec<Change> = gone
            .map(|name| Change::removed(place, format!("{what} {name}"), self.old.summary(name)))
            .collect();
        let come = new.iter().filter(|name| !in_old(name));
        changes
            .extend(come.map(|name| Change::added(place, format!("{what} {name}"), self.new.summary(name))));
        let before: Vec<&str> = old.iter().filter_map(|name| self.renamed(name)).collect();
        let kept: Vec<&str> = before.iter().copied().filter(|name| new.iter().any(|n| n == name)).collect();
        let now: Vec<&str> = new.iter().map(String::as_str).filter(|name| kept.contains(name)).collect();
        if is_ordered && kept != now {
            changes.push(Change::changed(
                place,
                format!("order of {what}s"),
                kept.join(", "),
                now.join(", "),
            ));
        }
        changes
    }

    /// Change of a place that has one plugin.
    pub(super) fn one(&self, place: &str, what: &str, old: &str, new: &str) -> Option<Change> {
        (!self.is_same(old, new)).then(|| Change::changed(place, what, old, new))
    }
}

/// Names of the plugins that have an effect.
fn in_use(view: View<'_>) -> BTreeSet<&str> {
    let resolved = view.0;
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for profile in &resolved.profiles {
        names.extend(profile.filters.iter().map(String::as_str));
        names.extend(profile.scorers.iter().map(|scorer| scorer.plugin.as_str()));
        names.insert(&profile.picker.plugin);
    }
    let single = [&resolved.profile_handler, &resolved.saturation_detector];
    let flow = resolved.flow_control.iter().flat_map(|flow| {
        let bands = flow.bands.iter().flat_map(|band| [&band.fairness_policy, &band.ordering_policy]);
        bands.chain([&flow.usage_limit_policy])
    });
    let uses = single.into_iter().chain(&resolved.parsers).chain(&resolved.discovery).chain(flow);
    names.extend(uses.map(|used| used.plugin.as_str()));
    for source in &resolved.sources {
        names.insert(&source.source.plugin);
        names.extend(source.extractors.iter().map(String::as_str));
    }
    let stages = &resolved.stages;
    for stage in [
        &stages.header_processors,
        &stages.gatherers,
        &stages.screeners,
        &stages.producers,
        &stages.admitters,
        &stages.pre_request,
    ] {
        names.extend(stage.iter().map(String::as_str));
    }
    let unnamed = resolved.plugins.iter().filter(|plugin| plugin.kinds.iter().all(|k| UNNAMED.contains(k)));
    names.extend(unnamed.map(|plugin| plugin.name.as_str()));
    // Those that the parameters of others name.
    loop {
        let used = resolved.plugins.iter().filter(|plugin| names.contains(plugin.name.as_str()));
        let mut words = BTreeSet::new();
        used.for_each(|plugin| texts(&plugin.parameters, &mut words));
        let more = resolved.plugins.iter().map(|plugin| plugin.name.as_str());
        let more: Vec<&str> = more.filter(|name| words.contains(name) && !names.contains(name)).collect();
        if more.is_empty() {
            return names;
        }
        names.extend(more);
    }
}

/// Texts in a value.
fn texts<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::String(text) => {
            found.insert(text);
        }
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(entries) => entries.values().for_each(|value| texts(value, found)),
        _ => {}
    }
}
