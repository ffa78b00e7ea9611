//! First estimate of the constants, from what a server was doing while each request was there.
//!
//! A response of `n` tokens after the first is in `n` steps, each of which costs `step × (1 + factor × others)` and what
//! prompts of others cost that are computed meanwhile; so per token
//!
//! ```text
//! tpot = step + step × factor × mean others + prompt tokens computed meanwhile / n / rate
//! ```
//!
//! and a first token comes when all prompt tokens are computed that the server takes until then:
//!
//! ```text
//! ttft = delay + prompt tokens computed meanwhile / rate + steps that decode for others
//! ```
//!
//! Both are fitted by least absolute relative errors (least squares, weighted anew).

use super::constants::{Constants, Fixed, SLOWER, median};
use super::observe::{Observations, Observed};

/// Rounds in which the factors of servers are found.
const ROUNDS: usize = 3;

/// Measured responses of a server from which on it has a factor of its own.
const OF_A_SERVER: usize = 20;

/// Factors nearer to 1 are chance.
const CLEAR: f64 = 1.12;

/// Sum of amounts that are spread evenly over intervals, up to a time.
#[derive(Default)]
struct Spread {
    /// Times with the sum and the slope from there on.
    knots: Vec<(f64, f64, f64)>,
}

impl Spread {
    fn new(intervals: impl Iterator<Item = (f64, f64, f64)>) -> Self {
        let mut edges: Vec<(f64, f64)> = Vec::new();
        for (start, end, amount) in intervals {
            // What takes no time takes a microsecond.
            let end = end.max(start + 1e-6);
            let slope = amount / (end - start);
            edges.extend([(start, slope), (end, -slope)]);
        }
        edges.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (mut sum, mut slope, mut last) = (0.0, 0.0, 0.0);
        let mut knots = Vec::with_capacity(edges.len());
        for (at, change) in edges {
            sum += slope * (at - last);
            slope += change;
            last = at;
            knots.push((at, sum, slope));
        }
        Self { knots }
    }

    fn until(&self, at: f64) -> f64 {
        let behind = self.knots.partition_point(|(knot, ..)| *knot <= at);
        let Some((knot, sum, slope)) = behind.checked_sub(1).and_then(|before| self.knots.get(before)) else {
            return 0.0;
        };
        sum + slope * (at - knot)
    }

    fn between(&self, from: f64, to: f64) -> f64 {
        self.until(to) - self.until(from)
    }
}

/// Work of a server over time.
struct Work {
    /// Seconds of requests that decode.
    decoding: Vec<Spread>,
    /// Prompt tokens.
    computing: Vec<Spread>,
}

impl Work {
    fn of(observed: &Observations) -> Self {
        let mut decoding = vec![Vec::new(); observed.servers];
        let mut computing = decoding.clone();
        for each in &observed.all {
            if each.output > 1.0 {
                decoding[each.server].push((each.first, each.last, each.last - each.first));
            }
            computing[each.computed_by].push((each.sent, each.first, each.computed));
        }
        let spread =
            |all: Vec<Vec<(f64, f64, f64)>>| all.into_iter().map(|of| Spread::new(of.into_iter())).collect();
        Self { decoding: spread(decoding), computing: spread(computing) }
    }

    /// Requests that decode at a server beside one, on average over an interval.
    fn others(&self, server: usize, from: f64, to: f64, own: f64) -> f64 {
        let time = (to - from).max(1e-9);
        (self.decoding[server].between(from, to) / time - own).max(0.0)
    }
}

/// A measured time as a sum of terms with unknown factors.
struct Row {
    server: usize,
    terms: [f64; 3],
    measured: f64,
}

/// Estimates the constants, and a factor for each server by which it is slower than the median.
pub(super) fn estimate(observed: &Observations, given: Constants, fixed: Fixed) -> (Constants, Vec<f64>) {
    let work = Work::of(observed);
    let tokens: Vec<Row> = observed.usable().filter_map(|each| token_row(each, &work)).collect();
    let mut constants = given;
    let mut slower = vec![1.0; observed.servers];
    for _ in 0..ROUNDS {
        let [step, other, prompt] = solve(&tokens, &slower, |slower| [slower; 3]);
        if !fixed.decode_step && step > 0.0 {
            constants.decode_step_ms = step * 1e3;
        }
        if !fixed.batch_factor && step > 0.0 {
            constants.batch_factor = other / step;
        }
        let step_s = constants.decode_step_ms / 1e3;
        let firsts: Vec<Row> =
            observed.usable().map(|each| first_row(each, &work, step_s, constants.batch_factor)).collect();
        let [delay, token, _] = solve(&firsts, &slower, |slower| [1.0, slower, slower]);
        let token = if token > 0.0 { token } else { prompt };
        if !fixed.prefill_rate && token > 0.0 {
            constants.prefill_rate = 1.0 / token;
        }
        if !fixed.delay {
            constants.delay_ms = 1e3 * rest(&firsts, &slower, constants.prefill_rate).unwrap_or(delay);
        }
        let expected = |row: &Row| {
            let [step, others, prompt] = row.terms;
            step_s * (step + constants.batch_factor * others) + prompt / constants.prefill_rate
        };
        let first = |row: &Row| row.terms[1] / constants.prefill_rate + row.terms[2];
        slower = factors(observed.servers, &tokens, &firsts, &expected, &first, constants.delay_ms / 1e3);
    }
    (constants.in_range(fixed), slower)
}

/// Time of first tokens besides their prompts, of the tenth with the least: others wait for the end of a step.
fn rest(firsts: &[Row], slower: &[f64], prefill_rate: f64) -> Option<f64> {
    let rest = |row: &Row| row.measured - slower[row.server] * row.terms[1] / prefill_rate;
    let mut rests: Vec<f64> = firsts.iter().map(rest).filter(|rest| *rest >= 0.0).collect();
    rests.sort_unstable_by(f64::total_cmp);
    rests.get(rests.len() / 10).copied()
}

fn token_row(each: &Observed, work: &Work) -> Option<Row> {
    let measured = each.tpot()?;
    let others = work.others(each.server, each.first, each.last, 1.0);
    let prompt = work.computing[each.server].between(each.first, each.last) / (each.output - 1.0);
    Some(Row { server: each.server, terms: [1.0, others, prompt], measured })
}

/// Terms: a constant, prompt tokens, and the time of a step that decodes for others.
fn first_row(each: &Observed, work: &Work, step: f64, factor: f64) -> Row {
    let computed = work.computing[each.computed_by].between(each.sent, each.first).max(each.computed);
    let others = work.others(each.computed_by, each.sent, each.first, 0.0);
    let decoding = others.min(1.0) * step * (1.0 + factor * (others - 1.0).max(0.0));
    Row { server: each.computed_by, terms: [1.0, computed, decoding], measured: each.ttft() }
}

/// Median ratios of measured to expected times of each server, by that of the median server.
fn factors(
    servers: usize,
    tokens: &[Row],
    firsts: &[Row],
    expected: &dyn Fn(&Row) -> f64,
    first: &dyn Fn(&Row) -> f64,
    delay: f64,
) -> Vec<f64> {
    let ratios = |rows: &[Row], expected: &dyn Fn(&Row) -> f64, delay: f64| -> Vec<Option<f64>> {
        let mut ratios = vec![Vec::new(); servers];
        for row in rows {
            let (expected, measured) = (expected(row), row.measured - delay);
            if expected > 0.0 && measured > 0.0 {
                ratios[row.server].push(measured / expected);
            }
        }
        ratios.iter_mut().map(|all| median(all).filter(|_| all.len() >= OF_A_SERVER)).collect()
    };
    let (by_token, by_first) = (ratios(tokens, expected, 0.0), ratios(firsts, first, delay));
    let found: Vec<Option<f64>> =
        by_token.into_iter().zip(by_first).map(|(token, first)| token.or(first)).collect();
    let mut known: Vec<f64> = found.iter().flatten().copied().collect();
    let usual = median(&mut known).unwrap_or(1.0);
    let clear = |factor: f64| factor.max(1.0 / factor) > CLEAR;
    found
        .iter()
        .map(|factor| {
            factor
                .map(|factor| factor / usual)
                .filter(|factor| clear(*factor))
                .map_or(1.0, |factor| factor.clamp(SLOWER[0], SLOWER[1]))
        })
        .collect()
}

/// Factors of the terms, at least 0. `scales`: how a server's factor multiplies its terms.
fn solve(rows: &[Row], slower: &[f64], scales: impl Fn(f64) -> [f64; 3]) -> [f64; 3] {
    let mut factors = [0.0; 3];
    let mut used = [true; 3];
    for round in 0..30 {
        let (mut left, mut right) = ([[0.0; 3]; 3], [0.0; 3]);
        for row in rows {
            let scale = scales(slower[row.server]);
            let terms: [f64; 3] =
                std::array::from_fn(|at| if used[at] { row.terms[at] * scale[at] } else { 0.0 });
            let expected: f64 = terms.iter().zip(&factors).map(|(term, factor)| term * factor).sum();
            let size = row.measured.abs().max(1e-4);
            let miss = if round == 0 { size } else { (row.measured - expected).abs().max(0.01 * size) };
            // A square counts as its root, by the measured time.
            let weight = 1.0 / (miss * size);
            for at in 0..3 {
                right[at] += weight * terms[at] * row.measured;
                for other in 0..3 {
                    left[at][other] += weight * terms[at] * terms[other];
                }
            }
        }
        factors = gauss(left, right, &used);
        if let Some(negative) =
            (0..3).filter(|at| factors[*at] < 0.0).min_by(|a, b| factors[*a].total_cmp(&factors[*b]))
        {
            used[negative] = false;
            factors[negative] = 0.0;
        }
    }
    factors.map(|factor| if factor.is_finite() { factor.max(0.0) } else { 0.0 })
}

/// Solves a system of three equations; unknowns that aren't used, or that nothing determines, are 0.
fn gauss(mut left: [[f64; 3]; 3], mut right: [f64; 3], used: &[bool; 3]) -> [f64; 3] {
    for at in 0..3 {
        if !used[at] || left[at][at] <= 0.0 {
            left[at] = [0.0; 3];
            (0..3).for_each(|row| left[row][at] = 0.0);
            (left[at][at], right[at]) = (1.0, 0.0);
        }
    }
    for at in 0..3 {
        let pivot = left[at][at];
        if pivot.abs() < 1e-300 {
            continue;
        }
        for row in at + 1..3 {
            let times = left[row][at] / pivot;
            let above = left[at];
            left[row].iter_mut().zip(above).for_each(|(value, above)| *value -= times * above);
            right[row] -= times * right[at];
        }
    }
    let mut found = [0.0; 3];
    for at in (0..3).rev() {
        let rest: f64 = (at + 1..3).map(|column| left[at][column] * found[column]).sum();
        found[at] = if left[at][at].abs() < 1e-300 { 0.0 } else { (right[at] - rest) / left[at][at] };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_spread_evenly() {
        let spread = Spread::new([(1.0, 3.0, 10.0), (2.0, 2.0, 4.0)].into_iter());
        for (at, sum) in [(0.0, 0.0), (1.0, 0.0), (1.5, 2.5), (2.5, 11.5), (9.0, 14.0)] {
            assert!((spread.until(at) - sum).abs() < 1e-6, "{at}: {}", spread.until(at));
        }
    }

    #[test]
    fn factors_are_nonnegative_and_robust_to_outliers() {
        let row = |n: u32| {
            let terms = [1.0, f64::from(n % 7), f64::from(n % 5)];
            let measured = 3.0 + 2.0 * terms[1] + if n.is_multiple_of(10) { 100.0 } else { 0.0 };
            Row { server: 0, terms, measured }
        };
        let rows: Vec<Row> = (1..200).map(row).collect();
        let found = solve(&rows, &[1.0], |slower| [slower; 3]);
        assert!((found[0] - 3.0).abs() < 0.1 && (found[1] - 2.0).abs() < 0.1 && found[2] < 0.1, "{found:?}");
        let falling: Vec<Row> = (0..50)
            .map(|n| Row { server: 0, terms: [1.0, f64::from(n), 0.0], measured: 100.0 - f64::from(n) })
            .collect();
        let found = solve(&falling, &[1.0], |slower| [slower; 3]);
        assert!(found[1] == 0.0 && found[0] > 40.0, "{found:?}");
        assert_eq!(solve(&[], &[], |slower| [slower; 3]), [0.0; 3]);
    }
}
