//! Joins the series of each field on one page to one number.
//!
//! A server process that runs several engines has a series for each; they are joined as the field's
//! meaning says. A series may also have several points, with a timestamp each, one below the other (as
//! OpenMetrics wants them): the newest counts, and the others don't.

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use super::engine::{Field, Join};
use super::labels::Labels;

/// A point of a series in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    /// Hash of the labels.
    series: u64,
    /// The timestamp, finite. Only compared, so its unit is the server's.
    at: f64,
}

impl Point {
    pub(super) fn new(labels: Labels<'_>, at: f64) -> Self {
        Self { series: xxh3_64(labels.raw()), at }
    }
}

/// The last point of a field that had a timestamp.
#[derive(Clone, Copy, Debug)]
struct Last {
    field: Field,
    point: Point,
    /// Number of the series before this one, joined; `None`: there were none.
    before: Option<f64>,
}

/// The numbers of one page, by field.
#[derive(Debug)]
pub(super) struct Joined {
    /// By the fields' numbers.
    values: [Option<f64>; Field::COUNT],
    /// Few pages have timestamps.
    last: SmallVec<[Last; 4]>,
}

impl Default for Joined {
    fn default() -> Self {
        Self { values: [None; Field::COUNT], last: SmallVec::new() }
    }
}

impl Joined {
    /// Joined number of a field; `None` where nothing was added.
    pub(super) fn get(&self, field: Field) -> Option<f64> {
        self.values[field.index()]
    }

    /// Forgets all of it.
    pub(super) fn clear(&mut self) {
        self.values = [None; Field::COUNT];
        self.last.clear();
    }

    /// Adds the value of one more series, or another point of the last one. One that is no
    /// number makes what it is joined with none, unless a newer point takes its place.
    pub(super) fn add(&mut self, field: Field, value: f64, join: Join, point: Option<Point>) {
        let so_far = self.values[field.index()];
        let before = match (point, join) {
            (None, Join::First) => so_far,
            (None, Join::Sum | Join::Largest) => {
                // What follows is no longer another point of the series before this one.
                self.last.retain(|last| last.field != field);
                so_far
            }
            (Some(point), Join::First) => {
                let Some(before) = self.before_newest(field, point, so_far) else { return };
                before
            }
            (Some(point), Join::Sum | Join::Largest) => {
                let Some(before) = self.before_series(field, point, so_far) else { return };
                before
            }
        };
        self.values[field.index()] = Some(match (join, before) {
            (_, None) => value,
            (Join::First, Some(first)) => first,
            (Join::Sum, Some(other)) => other + value,
            (Join::Largest, Some(other)) if other.is_nan() || value.is_nan() => f64::NAN,
            (Join::Largest, Some(other)) => other.max(value),
        });
    }

    /// Joined number of the series before that of this point; `None` where this isn't its newest point.
    fn before_series(&mut self, field: Field, point: Point, so_far: Option<f64>) -> Option<Option<f64>> {
        match self.last.iter_mut().find(|last| last.field == field) {
            Some(last) if last.point.series == point.series => {
                if point.at <= last.point.at {
                    return None;
                }
                last.point = point;
                Some(last.before)
            }
            Some(last) => {
                *last = Last { field, point, before: so_far };
                Some(so_far)
            }
            None => {
                self.last.push(Last { field, point, before: so_far });
                Some(so_far)
            }
        }
    }

    /// Number before the newest series, where the newest of all counts, one without a timestamp
    /// being of time 0.
    fn before_newest(&mut self, field: Field, point: Point, so_far: Option<f64>) -> Option<Option<f64>> {
        let last = self.last.iter_mut().find(|last| last.field == field);
        let known = so_far.map(|_| last.as_ref().map_or(0.0, |last| last.point.at));
        if known.is_some_and(|known| point.at <= known) {
            return None;
        }
        match last {
            Some(last) => last.point = point,
            None => self.last.push(Last { field, point, before: None }),
        }
        Some(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Joined number of a page of (labels, value, timestamp).
    fn joined(join: Join, page: &[(&str, f64, Option<f64>)]) -> Option<f64> {
        let mut joined = Joined::default();
        for (labels, value, at) in page {
            let point = at.map(|at| Point::new(Labels::from_raw(labels.as_bytes()), at));
            joined.add(Field::Waiting, *value, join, point);
            joined.add(Field::Running, 1.0, Join::Sum, point);
        }
        assert_eq!(joined.get(Field::KvUsage), None);
        joined.get(Field::Waiting)
    }

    #[test]
    fn series_are_joined_and_of_their_points_the_newest_counts() {
        let (a, b) = ("e=\"0\"}", "e=\"1\"}");
        // The page, the sum, the largest, the first.
        type Page<'p> = &'p [(&'p str, f64, Option<f64>)];
        let table: [(Page<'_>, [f64; 3]); 10] = [
            (&[(a, 3.0, None), (b, 5.0, None)], [8.0, 5.0, 3.0]),
            (&[(a, 3.0, None), (a, 5.0, None)], [8.0, 5.0, 3.0]),
            (&[(a, 3.0, Some(1.0)), (a, 5.0, Some(2.0))], [5.0, 5.0, 5.0]),
            (&[(a, 5.0, Some(2.0)), (a, 3.0, Some(1.0))], [5.0, 5.0, 5.0]),
            (&[(a, 5.0, Some(1.0)), (a, 3.0, Some(2.0))], [3.0, 3.0, 3.0]),
            (&[(a, 5.0, Some(1.0)), (a, 3.0, Some(1.0))], [5.0, 5.0, 5.0]),
            (&[(a, 5.0, Some(1.0)), (b, 3.0, Some(2.0))], [8.0, 5.0, 3.0]),
            (&[(b, 1.0, None), (a, 5.0, Some(1.0)), (a, 3.0, Some(2.0))], [4.0, 3.0, 3.0]),
            (
                &[(a, 9.0, Some(1.0)), (a, 3.0, Some(2.0)), (b, 7.0, Some(1.0)), (b, 4.0, Some(4.0))],
                [7.0, 4.0, 4.0],
            ),
            (&[(a, 3.0, Some(1.0)), (b, 5.0, None), (a, 4.0, Some(2.0))], [12.0, 5.0, 4.0]),
        ];
        for (page, [sum, largest, first]) in table {
            for (join, want) in [(Join::Sum, sum), (Join::Largest, largest), (Join::First, first)] {
                assert_eq!(joined(join, page), Some(want), "{join:?} {page:?}");
            }
        }
    }

    #[test]
    fn values_of_the_previous_page_are_cleared() {
        let labels = Labels::from_raw(b"}");
        let mut joined = Joined::default();
        for at in [7.0, 7.0, 3.0] {
            joined.add(Field::Waiting, at, Join::First, Some(Point::new(labels, at)));
            assert_eq!(joined.get(Field::Waiting), Some(at));
            joined.clear();
            assert_eq!(joined.get(Field::Waiting), None);
        }
    }
}
