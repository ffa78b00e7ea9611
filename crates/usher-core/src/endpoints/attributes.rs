//! Numbers of an endpoint that a configuration names.

/// Gauge of an endpoint's [`Load`](super::Load) for an attribute that a configuration adds
/// to what every engine reports. The default is the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeId(u8);

impl AttributeId {
    /// Most attributes that are kept at once: every endpoint has a gauge for each.
    pub const MAX: usize = 16;

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::MAX).filter_map(Self::new)
    }

    /// The gauge at this index, if there are so many.
    pub fn new(index: usize) -> Option<Self> {
        if index < Self::MAX { u8::try_from(index).ok().map(Self) } else { None }
    }

    /// Number, below [`MAX`](Self::MAX).
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A number of an endpoint that filters and scorers can be configured to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Requests waiting in the model server.
    Waiting,
    /// Requests running in the model server.
    Running,
    /// Share of the KV cache in use, 0..=1.
    KvUsage,
    /// An attribute that the configuration added.
    Attribute(AttributeId),
}

impl Reading {
    /// Readings that every engine reports, under the names that llm-d-router gives them.
    pub const NAMED: [(&'static str, Self); 3] = [
        ("WaitingQueueSize", Self::Waiting),
        ("RunningRequestsSize", Self::Running),
        ("KVCacheUsagePercent", Self::KvUsage),
    ];

    /// The reading that every engine reports under this name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.into_iter().find(|(known, _)| *known == name).map(|(_, reading)| reading)
    }
}
