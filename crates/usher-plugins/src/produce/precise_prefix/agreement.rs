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
/// published meanwhile, asked for when it counts. Unless what it published `is_complete`, an engine may well have cached more.
pub(super) fn compare(
    published: u64,
    cached: u64,
    (slack, is_complete): (u64, bool),
    by_now: impl FnOnce() -> u64,
) -> Option<Agreement> {
    let is_far_less = |few: u64, many: u64| few.saturating_add(slack) < many && few < many / 2;
    if published.max(if is_complete { cached } else { 0 }) <= slack {
        return None;
    }
    let not_cached = is_far_less(cached, published);
    let not_told = is_complete && is_far_less(published, cached) && is_far_less(by_now(), cached);
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
            let found = compare(published, cached, (32, true), || by_now);
            assert_eq!(found, expected, "{published} {by_now} {cached}");
        }
        // One that may hold more.
        for (published, cached, expected) in
            [(0, 160, None), (32, 160, None), (48, 160, agree), (160, 160, agree), (160, 64, not_cached)]
        {
            let found = compare(published, cached, (32, false), || 0);
            assert_eq!(found, expected, "{published} {cached}");
        }
    }
}
