//! Metric series by names that clients choose.

use super::Budget;

/// Memory of the series of a name, with the parts of a page and of what it is rendered from, in bytes. Measured
/// with 1,000 models: 23 KiB of series, 51 of the page, 40 to render it.
const NAME: u64 = 112 << 10;

/// Names that have series, however small the budget.
const LEAST: usize = 16;

impl Budget {
    /// Distinct values that a label may have whose values clients choose: what an eighth of the budget has room
    /// for, and no more than `most`.
    pub fn label_values(&self, most: usize) -> usize {
        let places = self.process().map(|process| process / 8 / NAME);
        places.map_or(most, |places| usize::try_from(places).unwrap_or(usize::MAX).clamp(LEAST, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_budgets_have_series_for_fewer_names() {
        assert_eq!(Budget::default().label_values(1000), 1000);
        for (process, names) in [(16 << 10, 1000), (1024, 1000), (96, 109), (16, 18), (1, 16)] {
            assert_eq!(Budget::of_process(process << 20, None).label_values(1000), names, "{process} MiB");
        }
    }
}
