//! Latency targets that a request names in its headers.

use super::Headers;

/// Headers with a target, and their older names; the first that is there counts.
const TTFT: [&str; 2] = ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"];
const TPOT: [&str; 2] = ["x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"];

/// Longest target that counts, in milliseconds: a day. Whoever waits longer has none.
const MOST_MS: f64 = 86_400_000.0;

/// Latency targets of a request, in seconds above 0. Without one, it doesn't matter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slo {
    /// Time to the first token, from the arrival of the request.
    pub ttft: Option<f64>,
    /// Mean time per output token after the first.
    pub tpot: Option<f64>,
}

impl Slo {
    /// Headers with the targets of the first token and per output token, in milliseconds.
    pub const HEADERS: [&str; 2] = [TTFT[0], TPOT[0]];

    /// Reads the targets, in milliseconds with or without a fraction. 0 is no target, and
    /// neither is what is no number.
    pub fn of(headers: &Headers) -> Self {
        let target = |names: &[&str]| read(headers, names).ok().flatten();
        Self { ttft: target(&TTFT), tpot: target(&TPOT) }
    }

    /// Headers whose value is no number of milliseconds, under their present names.
    pub fn ignored(headers: &Headers) -> impl Iterator<Item = &'static str> {
        [TTFT, TPOT].into_iter().filter(|names| read(headers, names).is_err()).map(|names| names[0])
    }

    /// Returns `true` if there is no target.
    pub fn is_empty(&self) -> bool {
        self.ttft.is_none() && self.tpot.is_none()
    }
}

/// The value is no number of milliseconds.
struct Invalid;

/// The target in seconds.
fn read(headers: &Headers, names: &[&str]) -> Result<Option<f64>, Invalid> {
    let Some(text) = headers.first_text(names) else { return Ok(None) };
    let ms = text.trim().parse::<f64>().map_err(|_| Invalid)?;
    if !ms.is_finite() || ms < 0.0 {
        return Err(Invalid);
    }
    Ok((ms > 0.0 && ms <= MOST_MS).then_some(ms / 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slo(headers: &[(&str, &str)]) -> (Option<f64>, Option<f64>, usize) {
        let headers: Headers = headers.iter().copied().collect();
        let Slo { ttft, tpot } = Slo::of(&headers);
        (ttft, tpot, Slo::ignored(&headers).count())
    }

    #[test]
    fn present_name_of_a_target_wins() {
        let (ttft, older) = (TTFT[0], TTFT[1]);
        assert_eq!(slo(&[(ttft, "500"), (TPOT[0], "12.5")]), (Some(0.5), Some(0.0125), 0));
        assert_eq!(slo(&[(older, "500"), (TPOT[1], " 20 ")]), (Some(0.5), Some(0.02), 0));
        assert_eq!(slo(&[(older, "500"), (ttft, "250")]), (Some(0.25), None, 0));
        assert_eq!(slo(&[(older, "500"), (ttft, "")]), (Some(0.5), None, 0), "an empty one is not there");
        assert_eq!(slo(&[]), (None, None, 0));
    }

    #[test]
    fn invalid_target_is_ignored_and_counted() {
        for text in ["soon", "-1", "NaN", "inf", "1e400", "5 ms", "0x10"] {
            assert_eq!(slo(&[(TTFT[0], text)]), (None, None, 1), "{text}");
            assert_eq!(slo(&[(TTFT[0], text), (TPOT[1], "30")]), (None, Some(0.03), 1), "{text}");
        }
        for text in ["0", "0.0", "86400001", "1e300"] {
            assert_eq!(slo(&[(TPOT[0], text)]), (None, None, 0), "{text} is no target");
        }
        let headers: Headers = [("x-slo-tpot-ms", "x")].into_iter().collect();
        assert_eq!(Slo::ignored(&headers).collect::<Vec<_>>(), ["x-llm-d-slo-tpot-ms"]);
    }
}
