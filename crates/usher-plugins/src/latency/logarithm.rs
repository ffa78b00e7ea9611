//! Natural logarithm without a call: in a loop over endpoints a call moves all that is in floating-point
//! registers to memory and back.

use std::f64::consts::LN_2;

/// Bits of √½.
const ROOT_OF_HALF: u64 = 0x3fe6_a09e_667f_3bcd;

/// Bits of the mantissa.
const MANTISSA: u32 = 52;

/// Natural logarithm, off by less than 1e-9. Of numbers that are not positive about that of the smallest
/// one, and of infinity about that of the largest; NaN of NaN.
#[inline(always)]
pub(super) fn ln(number: f64) -> f64 {
    if number.is_nan() {
        return number;
    }
    // Not `max`, which may return either of the two zeros.
    let bits = if number > 0.0 { number } else { 0.0 }.to_bits();
    // The number is 2ᵏ·m with m from √½ to √2, where ln m = 2·artanh((m − 1)/(m + 1)).
    let exponent = bits.wrapping_sub(ROOT_OF_HALF).cast_signed() >> MANTISSA;
    let mantissa = f64::from_bits(bits.wrapping_sub(exponent.cast_unsigned() << MANTISSA));
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let series = 1.0 + square * (1.0 / 3.0 + square * (1.0 / 5.0 + square * (1.0 / 7.0 + square / 9.0)));
    exponent as f64 * LN_2 + 2.0 * ratio * series
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::random::mix;

    #[test]
    fn logarithms_match_the_library() {
        for n in 0..20_000u64 {
            // All positive normal numbers are equally likely, by their bits.
            let number = f64::from_bits((1 << MANTISSA) + mix(n) % ((0x7ff << MANTISSA) - (1 << MANTISSA)));
            assert!((ln(number) - number.ln()).abs() < 1e-9, "{number}");
            let near = 1e-4 + 2.0 * (n as f64 / 20_000.0);
            assert!((ln(near) - near.ln()).abs() < 1e-9, "{near}");
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn odd_numbers_have_a_logarithm() {
        assert!([0.0, -0.0, -1.0, f64::NEG_INFINITY].iter().all(|number| ln(*number) < -700.0));
        assert!((709.0..720.0).contains(&ln(f64::INFINITY)));
        assert!(ln(f64::NAN).is_nan() && ln(-f64::NAN).is_nan());
    }
}
