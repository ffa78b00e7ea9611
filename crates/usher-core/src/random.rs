//! Numbers that look random and are the same every time, for simulations and tests.

/// One draw of SplitMix64 (Steele, Lea, Flood 2014): the same number for the same
/// input, on every machine.
#[inline]
pub fn mix(input: u64) -> u64 {
    let mut z = input.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
