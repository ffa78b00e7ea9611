//! Columns of a terminal that characters take.

use std::ops::RangeInclusive;

/// Characters that are drawn over the one before: combining marks, joiners and variation selectors.
const NONE: [RangeInclusive<u32>; 9] = [
    0x0300..=0x036f,
    0x0483..=0x0489,
    0x0591..=0x05bd,
    0x064b..=0x065f,
    0x1ab0..=0x1aff,
    0x1dc0..=0x1dff,
    0x200b..=0x200f,
    0x20d0..=0x20ff,
    0xfe00..=0xfe0f,
];

/// Wide and fullwidth characters of Unicode's `EastAsianWidth.txt`, which most emoji are among.
const TWO: [RangeInclusive<u32>; 20] = [
    0x1100..=0x115f,
    0x231a..=0x231b,
    0x23e9..=0x23ec,
    0x25fd..=0x25fe,
    0x2614..=0x2615,
    0x2648..=0x2653,
    0x26a1..=0x26a1,
    0x2705..=0x2705,
    0x2728..=0x2728,
    0x274c..=0x274c,
    0x2753..=0x2755,
    0x2e80..=0x303e,
    0x3041..=0xa4cf,
    0xa960..=0xa97c,
    0xac00..=0xd7a3,
    0xf900..=0xfaff,
    0xfe30..=0xfe6f,
    0xff01..=0xff60,
    0x1f300..=0x1faff,
    0x20000..=0x3fffd,
];

/// Columns that a character takes: 0, 1 or 2. Terminals differ in emoji of several characters.
pub(crate) fn cells(char: char) -> usize {
    let code = u32::from(char);
    // Almost all are below, and the rest is looked up in the order of the tables.
    if code < 0x300 {
        return 1;
    }
    let is_in = |ranges: &[RangeInclusive<u32>]| ranges.iter().any(|range| range.contains(&code));
    if is_in(&NONE) {
        0
    } else if is_in(&TWO) {
        2
    } else {
        1
    }
}

/// Columns that characters take beside each other.
pub(crate) fn cells_of(chars: &[char]) -> usize {
    chars.iter().map(|char| cells(*char)).sum()
}

/// Columns that a text takes.
pub(crate) fn columns_of(text: &str) -> usize {
    text.chars().map(cells).sum()
}

/// The text with spaces after it, up to `width` columns.
pub(crate) fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(columns_of(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_take_as_many_columns_as_terminals_give_them() {
        for (char, columns) in [
            ('a', 1),
            ('é', 1),
            ('…', 1),
            ('→', 1),
            ('\u{301}', 0),
            ('\u{fe0f}', 0),
            ('\u{200d}', 0),
            ('模', 2),
            ('ア', 2),
            ('한', 2),
            ('：', 2),
            ('🚀', 2),
            ('✅', 2),
            ('𠀀', 2),
        ] {
            assert_eq!(cells(char), columns, "{char:?}");
        }
        assert_eq!(cells_of(&['a', '模', '\u{301}']), 3);
    }
}
