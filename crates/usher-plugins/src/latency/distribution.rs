//! Distribution of the ratio of measured to predicted times.
//!
//! Quantiles of the ratio's logarithm are published when a time is measured; decisions
//! interpolate between them. All that depends on the quantiles alone is worked out when they are
//! published: a decision asks hundreds of times.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Probabilities of the published quantiles, and the same quantiles of the standard normal
/// distribution.
pub(super) const GRID: [(f32, f32); POINTS] = [
    (0.01, -2.326),
    (0.05, -1.645),
    (0.1, -1.282),
    (0.2, -0.842),
    (0.3, -0.524),
    (0.4, -0.253),
    (0.5, 0.0),
    (0.6, 0.253),
    (0.7, 0.524),
    (0.8, 0.842),
    (0.9, 1.282),
    (0.95, 1.645),
    (0.99, 2.326),
];
pub(super) const POINTS: usize = 13;
const MEDIAN: usize = 6;

/// Chance of keeping a target beyond which more is no better: of the last quantile but one.
pub(crate) const ENOUGH: f64 = 0.95;
const NEARLY_LAST: usize = 11;

/// Beyond the outermost published quantiles the distribution falls exponentially, at this
/// part of their distance from the median, and at least so much.
const TAIL: f32 = 0.25;
const LEAST_TAIL: f32 = 1e-3;

/// Times that scale from which on nothing is left of it: one in a thousand of a hundredth.
const NOWHERE: f32 = 7.0;

/// Quantiles of logarithms of ratios, at the probabilities of the grid.
pub(super) type Quantiles = [f32; POINTS];

/// Distribution of the ratio of measured to predicted times at one load.
///
/// While a sample is recorded, a reader may see some numbers of before and some of after it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Distribution {
    /// Quantiles of the logarithm, rising; `f32` bits as all of these.
    values: [AtomicU32; POINTS],
    /// Probability per difference of the logarithm, from each quantile to the next.
    slopes: [AtomicU32; POINTS - 1],
    /// Inverse scales of the exponentials beyond the first and the last quantile.
    falls: [AtomicU32; 2],
    /// Points of the ratio itself: its median, the ratio beyond which a target is kept with [`ENOUGH`], and
    /// the one beyond which there is nothing.
    median: AtomicU32,
    enough: AtomicU32,
    sure: AtomicU32,
}

impl Distribution {
    /// Publishes quantiles, which rise.
    pub(super) fn set(&self, quantiles: &Quantiles) {
        for (cell, value) in self.values.iter().zip(quantiles) {
            store(cell, *value);
        }
        let ends = quantiles.iter().zip(&quantiles[1..]).zip(GRID.iter().zip(&GRID[1..]));
        for (cell, ((begin, end), ((low, _), (high, _)))) in self.slopes.iter().zip(ends) {
            let width = end - begin;
            store(cell, if width > 0.0 { ((high - low) / width).min(f32::MAX) } else { f32::MAX });
        }
        let [last, first] = [POINTS - 1, 0].map(|outermost| self.tail(outermost) as f32);
        store(&self.falls[0], 1.0 / first);
        store(&self.falls[1], 1.0 / last);
        store(&self.sure, (quantiles[POINTS - 1] + NOWHERE * last).exp());
        store(&self.enough, quantiles[NEARLY_LAST].exp());
        store(&self.median, quantiles[MEDIAN].exp());
    }

    /// Ratio below which a share `p` (0..=1) of the times is.
    pub fn quantile(&self, p: f64) -> f64 {
        let p = p.clamp(1e-4, 1.0 - 1e-4);
        let (first, last) = (f64::from(GRID[0].0), f64::from(GRID[POINTS - 1].0));
        let log = if p < first {
            self.value(0) + self.tail(0) * (p / first).ln()
        } else if p > last {
            self.value(POINTS - 1) - self.tail(POINTS - 1) * ((1.0 - p) / (1.0 - last)).ln()
        } else {
            let above = GRID.partition_point(|point| f64::from(point.0) <= p).clamp(1, POINTS - 1);
            let (low, high) = (f64::from(GRID[above - 1].0), f64::from(GRID[above].0));
            let share = (p - low) / (high - low);
            self.value(above - 1) + share * (self.value(above) - self.value(above - 1))
        };
        log.exp()
    }

    /// Probability, 0..=1, that a time that is predicted to be `predicted` is at most `limit`,
    /// both in seconds.
    #[inline]
    pub fn within(&self, predicted: f64, limit: f64) -> f64 {
        if limit.is_nan() || predicted.is_nan() || limit <= 0.0 {
            return 0.0;
        }
        // Nearly all endpoints of an idle pool keep a loose target for sure: without a logarithm.
        if predicted <= 0.0 || self.is_sure(predicted, limit) {
            return 1.0;
        }
        self.below(super::logarithm::ln(limit / predicted))
    }

    /// Returns `true` if that probability is 1.
    #[inline]
    pub(super) fn is_sure(&self, predicted: f64, limit: f64) -> bool {
        limit > 0.0 && limit >= predicted * f64::from(load(&self.sure))
    }

    /// Returns `true` if that probability is [`ENOUGH`].
    #[inline]
    pub(super) fn is_enough(&self, predicted: f64, limit: f64) -> bool {
        limit > 0.0 && limit >= predicted * f64::from(load(&self.enough))
    }

    /// Longest prediction for which that probability is a half and more, as a part of the limit.
    #[inline]
    pub(super) fn median(&self) -> f64 {
        f64::from(load(&self.median))
    }

    /// Probability, 0..=1, that the logarithm of the ratio is at most this.
    #[inline]
    pub fn below(&self, log: f64) -> f64 {
        let log = log as f32;
        let (first, last) = (load(&self.values[0]), load(&self.values[POINTS - 1]));
        let chance = if log >= last {
            1.0 - (1.0 - GRID[POINTS - 1].0) * far((log - last) * load(&self.falls[1]))
        } else if log >= first {
            // Between the first and the last, as far as this thread has seen them. Counted without a
            // branch: where a logarithm is differs from one endpoint to the next.
            let below: usize = self.values.iter().map(|value| usize::from(load(value) <= log)).sum();
            let segment = below.clamp(1, POINTS - 1) - 1;
            let (low, high) = (GRID[segment].0, GRID[segment + 1].0);
            let more = (log - load(&self.values[segment])) * load(&self.slopes[segment]);
            low + more.clamp(0.0, high - low)
        } else if log.is_nan() {
            0.0
        } else {
            GRID[0].0 * far((first - log) * load(&self.falls[0]))
        };
        f64::from(chance)
    }

    fn value(&self, point: usize) -> f64 {
        f64::from(load(&self.values[point]))
    }

    /// Scale of the exponential beyond an outermost quantile.
    fn tail(&self, outermost: usize) -> f64 {
        let distance = load(&self.values[outermost]) - load(&self.values[MEDIAN]);
        f64::from((distance.abs() * TAIL).max(LEAST_TAIL))
    }
}

#[inline]
fn load(cell: &AtomicU32) -> f32 {
    f32::from_bits(cell.load(Relaxed))
}

fn store(cell: &AtomicU32, value: f32) {
    cell.store(value.to_bits(), Relaxed);
}

/// Share of an exponential tail that is so many times its scale away and more, off by less than
/// 1e-4: e⁻ˣ is the eighth power of e⁻ˣᐟ⁸, of which five terms are enough.
#[inline]
fn far(scales: f32) -> f32 {
    if scales >= NOWHERE {
        return 0.0;
    }
    let part = scales / 8.0;
    let root = 1.0 - part * (1.0 - part * (1.0 / 2.0 - part * (1.0 / 6.0 - part / 24.0)));
    let square = root * root;
    let fourth = square * square;
    fourth * fourth
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::random::mix;

    /// Evenly in 0..1.
    fn draw(number: u64) -> f64 {
        (mix(number) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The same probability without anything worked out before, and in double precision.
    fn plainly(quantiles: &Quantiles, log: f64) -> f64 {
        let value = |point: usize| f64::from(quantiles[point]);
        let tail = |point: usize| ((value(point) - value(MEDIAN)).abs() * 0.25).max(1e-3);
        let far = |scales: f64| if scales < 7.0 { (-scales).exp() } else { 0.0 };
        let last = POINTS - 1;
        if log < value(0) {
            return f64::from(GRID[0].0) * far((value(0) - log) / tail(0));
        }
        if log >= value(last) {
            return 1.0 - (1.0 - f64::from(GRID[last].0)) * far((log - value(last)) / tail(last));
        }
        let above = (1..last).find(|point| value(*point) > log).unwrap_or(last);
        let (low, high) = (f64::from(GRID[above - 1].0), f64::from(GRID[above].0));
        low + (high - low) * (log - value(above - 1)) / (value(above) - value(above - 1))
    }

    /// Quantiles of a distribution that is narrow or wide, and has steps.
    fn quantiles(number: u64) -> Quantiles {
        let scale = 10f64.powf(-3.0 + 3.5 * draw(3 * number));
        let mut at = (draw(3 * number + 1) - 0.7) * 4.0 * scale;
        std::array::from_fn(|point| {
            let is_step = mix(97 * number + point as u64).is_multiple_of(5);
            at += if is_step { 0.0 } else { scale * draw(1000 * number + point as u64) };
            at as f32
        })
    }

    #[test]
    fn probabilities_match_the_plain_formula() {
        let distribution = Distribution::default();
        for number in 0..400 {
            let quantiles = quantiles(number);
            distribution.set(&quantiles);
            let (first, last) = (f64::from(quantiles[0]), f64::from(quantiles[POINTS - 1]));
            for n in 0..300 {
                let log = first + (last - first) * (draw(number << 32 | n) * 4.0 - 1.5);
                let chance = distribution.below(log);
                // Single precision moves the logarithm, and far tails are approximated.
                let slack = 1e-6 * (1.0 + log.abs());
                let low = plainly(&quantiles, log - slack) - 2e-6;
                let high = plainly(&quantiles, log + slack) + 2e-6;
                assert!((low..=high).contains(&chance), "{quantiles:?} {log}: {low} {chance} {high}");
            }
        }
    }

    #[test]
    fn shortcuts_agree_with_the_probability() {
        let distribution = Distribution::default();
        for number in 0..200 {
            distribution.set(&quantiles(number));
            for n in 0..200 {
                let limit = (draw(number << 32 | n) * 6.0 - 3.0).exp();
                let chance = distribution.within(1.0, limit);
                assert_eq!(chance, distribution.within(3.0, 3.0 * limit), "{limit}");
                let differ = |is: bool, from: f64| (chance - from).abs() > 1e-4 && is != (chance > from);
                assert!(!differ(distribution.is_enough(1.0, limit), ENOUGH), "{limit} {chance}");
                assert!(!differ(limit >= distribution.median(), 0.5), "{limit} {chance}");
                assert!(!distribution.is_sure(1.0, limit) || chance == 1.0, "{limit} {chance}");
            }
        }
        assert!(!distribution.is_sure(f64::NAN, 1.0) && !distribution.is_enough(1.0, f64::NAN));
    }

    #[test]
    fn exponential_is_close_to_the_library() {
        for n in 0..=700u16 {
            let scales = f32::from(n) / 100.0;
            assert!(scales >= NOWHERE || (far(scales) - (-scales).exp()).abs() < 1e-4, "{scales}");
        }
    }
}
