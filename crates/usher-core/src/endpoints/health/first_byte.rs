//! Learned times to the first byte of a response, by class of requests.

use std::array;

/// Sizes of request bodies that are told apart: up to 1 KiB, then each up to four times
/// the one before.
pub(super) const SIZES: usize = 8;
/// Kinds of responses that are told apart: a stream, and whole responses by the client's
/// limit on tokens.
const RESPONSES: usize = 7;
/// Kinds of responses to text, and to requests whose work doesn't show in the size of their body.
const KINDS: usize = 2 * RESPONSES;
/// Responses of a class before their times say anything.
const ENOUGH: u32 = 8;
/// The last responses of a class weigh as if there had been so many.
const WINDOW: u32 = 64;
/// Factor from one size to the next where only the smaller one is known: computing a
/// prompt of four times the length takes four times as long, or sixteen times where
/// attention is most of it.
const GROWTH: f64 = 8.0;

/// Requests whose first bytes take about as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestClass {
    size: u8,
    kind: u8,
}

impl RequestClass {
    /// The class of a request for text with a body of so many bytes of text. The first byte of a
    /// response that is no stream comes when all tokens are there.
    pub fn of(bytes: usize, stream: bool, max_output_tokens: Option<u64>) -> Self {
        let size = bytes.checked_ilog2().unwrap_or(0).saturating_sub(8) / 2;
        let kind = match (stream, max_output_tokens) {
            (true, _) => 0,
            (false, None) => 1,
            (false, Some(..=16)) => 2,
            (false, Some(..=128)) => 3,
            (false, Some(..=1024)) => 4,
            (false, Some(..=8192)) => 5,
            (false, Some(_)) => 6,
        };
        Self { size: size.min(SIZES as u32 - 1) as u8, kind }
    }

    /// The class of requests with images, videos or clips, in the request or its response. Their work has
    /// little to do with the size of the body: a link to an image is short.
    #[must_use]
    pub fn with_media(self) -> Self {
        Self { kind: self.kind % RESPONSES as u8 + RESPONSES as u8, ..self }
    }

    /// Returns `true` if it is [`with_media`](Self::with_media).
    pub(super) fn has_media(self) -> bool {
        usize::from(self.kind) >= RESPONSES
    }

    /// Size, below [`SIZES`].
    pub(super) fn size(self) -> usize {
        usize::from(self.size)
    }
}

/// Mean and mean deviation, as RFC 6298 has them of round trips.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    mean_ms: f64,
    deviation_ms: f64,
    count: u32,
}

impl Times {
    fn learn(&mut self, ms: f64) {
        self.count = self.count.saturating_add(1).min(WINDOW);
        let weight = 1.0 / f64::from(self.count);
        let error = ms - self.mean_ms;
        self.mean_ms += weight * error;
        self.deviation_ms += weight * (error.abs() - self.deviation_ms);
    }
}

/// Times to the first byte over a pool.
#[derive(Debug)]
pub(super) struct FirstBytes([[Times; SIZES]; KINDS]);

impl Default for FirstBytes {
    fn default() -> Self {
        Self([[Times::default(); SIZES]; KINDS])
    }
}

impl FirstBytes {
    /// The first byte of a response to such a request came after so many milliseconds.
    pub(super) fn learn(&mut self, class: RequestClass, ms: u64) {
        let times =
            self.0.get_mut(usize::from(class.kind)).and_then(|kind| kind.get_mut(usize::from(class.size)));
        if let Some(times) = times {
            times.learn(ms as f64);
        }
    }

    /// The usual times of all classes. A sweep looks them up for every request that waits.
    pub(super) fn usual(&self) -> UsualTimes {
        let class = |kind: usize, size: usize| RequestClass { size: size as u8, kind: kind as u8 };
        UsualTimes(array::from_fn(|kind| array::from_fn(|size| self.usual_ms(class(kind, size)))))
    }

    /// Milliseconds that nearly all first bytes of such requests take at most: the mean and
    /// four deviations (RFC 6298, section 2). `None`: nothing is known of their like.
    fn usual_ms(&self, class: RequestClass) -> Option<f64> {
        let sizes = self.0.get(usize::from(class.kind))?;
        let known = |(size, times): (usize, &Times)| {
            (times.count >= ENOUGH).then_some((size, times.mean_ms + 4.0 * times.deviation_ms))
        };
        let own = usize::from(class.size);
        let smaller = sizes.iter().enumerate().take(own + 1).rev().find_map(known);
        let scaled = smaller.map(|(size, ms)| ms * GROWTH.powi((own - size) as i32));
        scaled.or_else(|| sizes.iter().enumerate().skip(own + 1).find_map(known).map(|(_, ms)| ms))
    }
}

/// Milliseconds that nearly all first bytes take at most, by class.
#[derive(Debug)]
pub(super) struct UsualTimes([[Option<f64>; SIZES]; KINDS]);

impl UsualTimes {
    /// Usual milliseconds of a class; `None`: no response of a similar class has been measured.
    pub(super) fn ms(&self, class: RequestClass) -> Option<f64> {
        *self.0.get(usize::from(class.kind))?.get(usize::from(class.size))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_times_are_learned_by_class() {
        let mut times = FirstBytes::default();
        let short = RequestClass::of(900, true, None);
        (0..7).for_each(|_| times.learn(short, 100));
        assert_eq!(times.usual_ms(short), None, "too few");
        (0..93).for_each(|_| times.learn(short, 100));
        let usual = times.usual_ms(short).unwrap();
        assert!((100.0..130.0).contains(&usual), "{usual}");
        // One outlier is no new rule, and many are.
        times.learn(short, 10_000);
        assert!(times.usual_ms(short).unwrap() < 1_000.0);
        (0..64).for_each(|_| times.learn(short, 10_000));
        assert!(times.usual_ms(short).unwrap() > 5_000.0);
        assert_eq!(times.usual_ms(RequestClass::of(900, false, None)), None, "whole responses take longer");
    }

    #[test]
    fn an_unknown_size_is_scaled_from_the_next_smaller_one() {
        let mut times = FirstBytes::default();
        let (short, long) = (RequestClass::of(2_000, true, None), RequestClass::of(40_000, true, None));
        (0..200).for_each(|_| times.learn(short, 100));
        let (known, scaled) = (times.usual_ms(short).unwrap(), times.usual_ms(long).unwrap());
        assert!((scaled / known - 64.0).abs() < 1e-6, "{known} {scaled}");
        assert_eq!(times.usual_ms(RequestClass::of(0, true, None)), Some(known), "the next larger one");
    }

    #[test]
    fn usual_times_are_per_class() {
        let mut times = FirstBytes::default();
        let short = RequestClass::of(900, true, None);
        (0..200).for_each(|_| times.learn(short, 100));
        (0..200).for_each(|_| times.learn(short.with_media(), 5000));
        let usual = times.usual();
        for bytes in [0, 900, 5_000, 1 << 20] {
            for (stream, limit) in [(true, None), (false, None), (false, Some(100))] {
                let class = RequestClass::of(bytes, stream, limit);
                for class in [class, class.with_media()] {
                    assert_eq!(usual.ms(class), times.usual_ms(class), "{class:?}");
                    assert_eq!(usual.ms(class).is_some(), stream, "{class:?}");
                }
            }
        }
    }

    #[test]
    fn media_and_text_are_learned_separately() {
        let mut times = FirstBytes::default();
        let text = RequestClass::of(900, true, None);
        let image = text.with_media();
        (0..200).for_each(|_| times.learn(text, 100));
        assert_eq!(times.usual_ms(image), None);
        (0..200).for_each(|_| times.learn(image, 5000));
        assert!(times.usual_ms(image).unwrap() >= 5000.0);
        assert!((100.0..130.0).contains(&times.usual_ms(text).unwrap()));
        assert_eq!(times.usual_ms(RequestClass::of(900, false, None).with_media()), None);
        assert!(image.has_media() && image.with_media() == image && !text.has_media());
    }

    #[test]
    fn classes_follow_size_and_limit() {
        let sizes = [0, 1023, 1024, 4095, 4096, 1 << 20, usize::MAX]
            .map(|bytes| RequestClass::of(bytes, true, None).size);
        assert_eq!(sizes, [0, 0, 1, 1, 2, 6, 7]);
        let kinds = [None, Some(16), Some(17), Some(1024), Some(8192), Some(u64::MAX)];
        assert_eq!(kinds.map(|max| RequestClass::of(1, false, max).kind), [1, 2, 3, 4, 5, 6]);
        assert!(RequestClass::of(5000, true, None).size() > RequestClass::of(10, false, None).size());
    }
}
