//! Text that nobody wrote.

use crate::sim::mix;

/// Characters per token, about what English text has, and what the simulated servers
/// count.
pub const TOKEN_CHARS: usize = 4;

/// Words of a line. A line's end is escaped in JSON, so one character in a hundred is,
/// as in prose.
const LINE: u64 = 25;

/// Appends `count` words of four characters, the fourth a space or a line's end, that
/// follow from `seed` alone.
pub(crate) fn words(seed: u64, count: usize, text: &mut String) {
    const CONSONANTS: &[u8; 16] = b"bcdfghjklmnprstv";
    const VOWELS: &[u8; 4] = b"aeio";
    for number in 0..count as u64 {
        let bits = mix(mix(seed).wrapping_add(number)) as usize;
        text.push(char::from(CONSONANTS[bits & 15]));
        text.push(char::from(VOWELS[(bits >> 4) & 3]));
        text.push(char::from(CONSONANTS[(bits >> 6) & 15]));
        text.push(if number % LINE == LINE - 1 { '\n' } else { ' ' });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_four_characters_and_lines_a_hundred() {
        let mut text = String::new();
        words(7, 250, &mut text);
        assert_eq!(text.len(), 250 * TOKEN_CHARS);
        assert!(text.lines().all(|line| line.len() == 99), "{text}");
        assert!(text.split_whitespace().all(|word| word.len() == 3), "{text}");
    }

    #[test]
    fn a_seed_gives_one_text_and_shorter_ones_are_its_start() {
        let text = |seed, count| {
            let mut text = String::new();
            words(seed, count, &mut text);
            text
        };
        assert!(text(1, 50).starts_with(&text(1, 20)));
        assert_ne!(text(1, 20), text(2, 20));
    }
}
