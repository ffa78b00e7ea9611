//! Generated text.

use usher_core::random::mix;

/// Characters per token, about what English text has, and what the simulated servers
/// count.
pub const TOKEN_CHARS: usize = 4;

/// Words of a line. A line's end is escaped in JSON, so one character in a hundred is,
/// as in prose.
const LINE: usize = 25;

/// Appends `count` words of four characters, the fourth a space or a line's end, that
/// follow from `seed` alone.
pub(crate) fn words(seed: u64, count: usize, text: &mut String) {
    const CONSONANTS: &[u8; 16] = b"bcdfghjklmnprstv";
    const VOWELS: &[u8; 4] = b"aeio";
    text.reserve(count * TOKEN_CHARS);
    let start = mix(seed);
    let mut number = 0;
    // Line by line: appending single characters takes longer than to find them.
    while number < count {
        let mut line = [b' '; LINE * TOKEN_CHARS];
        let length = LINE.min(count - number);
        for (word, number) in line.chunks_exact_mut(TOKEN_CHARS).zip(number as u64..).take(length) {
            let bits = mix(start.wrapping_add(number)) as usize;
            word[0] = CONSONANTS[bits & 15];
            word[1] = VOWELS[(bits >> 4) & 3];
            word[2] = CONSONANTS[(bits >> 6) & 15];
        }
        if length == LINE {
            line[LINE * TOKEN_CHARS - 1] = b'\n';
        }
        // All of it is ASCII.
        text.push_str(str::from_utf8(&line[..length * TOKEN_CHARS]).unwrap_or_default());
        number += length;
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
    fn seed_determines_the_text_and_its_prefixes() {
        let text = |seed, count| {
            let mut text = String::new();
            words(seed, count, &mut text);
            text
        };
        assert!(text(1, 50).starts_with(&text(1, 20)));
        assert_ne!(text(1, 20), text(2, 20));
    }
}
