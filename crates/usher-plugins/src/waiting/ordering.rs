//! Which request of a flow goes first.

/// The order of a flow's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ordering {
    /// `fcfs-ordering-policy`: who came first.
    #[default]
    Fcfs,
    /// `edf-ordering-policy`: whose time to wait ends first. Those that may wait for ever
    /// go last.
    Edf,
    /// `slo-deadline-ordering-policy`: whose first token is due first. Those that name no
    /// time go last.
    SloDeadline,
}
