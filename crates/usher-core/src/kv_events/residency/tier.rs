//! Tiers of memory that blocks are in.

/// Tier of memory. A block in several counts as in the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tier(u8);

impl Tier {
    /// Tiers at most.
    pub const MAX: u8 = 16;
    /// The accelerator's memory.
    pub const GPU: Self = Self(0);
    /// The host's memory.
    pub const CPU: Self = Self(1);
    /// The host's disks.
    pub const DISK: Self = Self(2);

    /// The tier with this number, below [`Tier::MAX`].
    pub fn new(number: u8) -> Option<Self> {
        (number < Self::MAX).then_some(Self(number))
    }

    /// Number of the tier.
    pub fn number(self) -> u8 {
        self.0
    }
}

/// Names that engines have for tiers.
#[derive(Clone, Debug)]
pub struct Media {
    names: Vec<(String, Tier)>,
}

impl Default for Media {
    /// Media that vLLM, SGLang and their connectors name for the engine's own node. What several share
    /// (`EXTERNAL`, `REMOTE`, `OBJ`) is not known: it says nothing about an endpoint.
    fn default() -> Self {
        let names = [
            ("gpu", Tier::GPU),
            ("cpu", Tier::CPU),
            ("cpu_pinned", Tier::CPU),
            ("disk", Tier::DISK),
            ("storage", Tier::DISK),
            ("fs", Tier::DISK),
        ];
        Self { names: names.map(|(name, tier)| (name.to_owned(), tier)).into() }
    }
}

impl Media {
    /// Knows a medium by this name as well, or as another tier than before.
    #[must_use]
    pub fn with(mut self, name: &str, tier: Tier) -> Self {
        self.names.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.names.push((name.to_owned(), tier));
        self
    }

    /// Numbers the tiers by their places in a list, which has all of them.
    #[must_use]
    pub fn in_order(mut self, tiers: &[Tier]) -> Self {
        for (_, tier) in &mut self.names {
            let place = tiers.iter().position(|other| other == tier);
            *tier = place.and_then(|place| Tier::new(u8::try_from(place).ok()?)).unwrap_or(*tier);
        }
        self
    }

    /// Tier of a medium, whatever its case. Without a name it is the GPU.
    pub fn tier(&self, medium: Option<&str>) -> Option<Tier> {
        let name = medium.filter(|name| !name.is_empty()).unwrap_or("gpu");
        self.names.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, tier)| *tier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_are_known_in_any_case() {
        let media = Media::default().with("lmcache", Tier::CPU).with("disk", Tier::new(3).unwrap());
        for (medium, tier) in [
            (None, Some(0)),
            (Some(""), Some(0)),
            (Some("GPU"), Some(0)),
            (Some("Cpu"), Some(1)),
            (Some("CPU_PINNED"), Some(1)),
            (Some("LMCache"), Some(1)),
            (Some("DISK"), Some(3)),
            (Some("EXTERNAL"), None),
            (Some("moon"), None),
        ] {
            assert_eq!(media.tier(medium).map(Tier::number), tier, "{medium:?}");
        }
        assert_eq!(Tier::new(Tier::MAX), None);
        let media = media.in_order(&[Tier::CPU, Tier::DISK, Tier::new(3).unwrap(), Tier::GPU]);
        for (medium, tier) in [("cpu", 0), ("lmcache", 0), ("fs", 1), ("disk", 2), ("", 3), ("gpu", 3)] {
            assert_eq!(media.tier(Some(medium)).map(Tier::number), Some(tier), "{medium}");
        }
    }
}
