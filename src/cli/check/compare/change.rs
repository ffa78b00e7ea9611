//! A change in behaviour between two configurations.

use serde::Serialize;

/// A change in behaviour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::cli::check) struct Change {
    /// Part of the configuration, as in `profile default`.
    pub(in crate::cli::check) place: String,
    pub(in crate::cli::check) change: Kind,
    /// Plugin, parameter or setting.
    pub(in crate::cli::check) what: String,
    /// Value or summary before; `None` for what was added.
    pub(in crate::cli::check) old: Option<String>,
    /// Value or summary after; `None` for what was removed.
    pub(in crate::cli::check) new: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::cli::check) enum Kind {
    Added,
    Removed,
    Changed,
}

impl Change {
    pub(in crate::cli::check) fn added(place: &str, what: impl Into<String>, new: impl Into<String>) -> Self {
        let (place, what, new) = (place.to_owned(), what.into(), Some(new.into()));
        Self { place, change: Kind::Added, what, old: None, new }
    }

    pub(in crate::cli::check) fn removed(
        place: &str,
        what: impl Into<String>,
        old: impl Into<String>,
    ) -> Self {
        let (place, what, old) = (place.to_owned(), what.into(), Some(old.into()));
        Self { place, change: Kind::Removed, what, old, new: None }
    }

    pub(in crate::cli::check) fn changed(
        place: &str,
        what: impl Into<String>,
        old: impl Into<String>,
        new: impl Into<String>,
    ) -> Self {
        let (place, what) = (place.to_owned(), what.into());
        Self { place, change: Kind::Changed, what, old: Some(old.into()), new: Some(new.into()) }
    }

    pub(in crate::cli::check) fn text(&self) -> String {
        let Self { what, .. } = self;
        match (self.change, &self.old, &self.new) {
            (Kind::Added, _, Some(new)) if !new.is_empty() => format!("+ {what}: {new}"),
            (Kind::Added, ..) => format!("+ {what}"),
            (Kind::Removed, Some(old), _) if !old.is_empty() => format!("- {what}: {old}"),
            (Kind::Removed, ..) => format!("- {what}"),
            (Kind::Changed, old, new) => {
                let shown = |value: &Option<String>| value.clone().unwrap_or_default();
                format!("~ {what}: {} → {}", shown(old), shown(new))
            }
        }
    }
}
