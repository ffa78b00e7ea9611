//! Counts of requests whose cached tokens were compared, and what counts as a mismatch.

/// Requests of an endpoint whose cached tokens were compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// All of them.
    pub compared: u64,
    /// Requests with less than half of the tokens cached that KV events had announced.
    pub not_cached: u64,
    /// Requests with more than twice the tokens cached that KV events had announced.
    pub not_told: u64,
}

impl Agreement {
    /// Adds others.
    pub fn add(&mut self, other: Self) {
        self.compared += other.compared;
        self.not_cached += other.not_cached;
        self.not_told += other.not_told;
    }
}

/// Result for tokens that were published and were cached; `None` where both are too few to say anything. `by_now`: those
/// published meanwhile, asked for when it counts.
pub(super) fn compare(
    published: u64,
    cached: u64,
    slack: u64,
    by_now: impl FnOnce() -> u64,
) -> Option<Agreement> {
    let is_far_less = |few: u64, many: u64| few.saturating_add(slack) < many && few < many / 2;
    if published.max(cached) <= slack {
        return None;
    }
    let not_cached = is_far_less(cached, published);
    let not_told = is_far_less(published, cached) && is_far_less(by_now(), cached);
    Some(Agreement { compared: 1, not_cached: not_cached.into(), not_told: not_told.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_agree_with_events_within_the_slack() {
        let agree = Some(Agreement { compared: 1, ..Agreement::default() });
        let not_cached = Some(Agreement { compared: 1, not_cached: 1, not_told: 0 });
        let not_told = Some(Agreement { compared: 1, not_cached: 0, not_told: 1 });
        // Published at the decision and by now, cached, result; a slack of 32.
        let table = [
            ((0, 0), 0, None),
            ((32, 32), 0, None),
            ((0, 0), 32, None),
            ((160, 160), 160, agree),
            ((160, 160), 128, agree),
            // Half was evicted while the request waited.
            ((160, 160), 80, agree),
            ((160, 160), 64, not_cached),
            ((48, 48), 0, not_cached),
            // On its way at the decision.
            ((0, 160), 160, agree),
            ((0, 64), 160, not_told),
            ((0, 0), 48, not_told),
            ((96, 96), 160, agree),
        ];
        for ((published, by_now), cached, expected) in table {
            assert_eq!(compare(published, cached, 32, || by_now), expected, "{published} {by_now} {cached}");
        }
    }
}
