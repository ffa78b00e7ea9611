//! Metric series by names that clients choose.

use super::Budget;
use crate::metrics::SeriesRoom;

impl Budget {
    /// Room for the series of all tables whose labels clients choose: an eighth of what the process may take.
    pub fn series_room(&self) -> &SeriesRoom {
        &self.series
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_have_an_eighth_of_the_budget() {
        let models = |budget: Budget| budget.series_room().lines() / 400;
        assert!(models(Budget::default()) > 1 << 40);
        for (process, expected) in [(16 << 10, 18_641), (1024, 1165), (96, 109), (16, 18)] {
            assert_eq!(models(Budget::of_process(process << 20, None)), expected, "{process} MiB");
        }
    }
}
