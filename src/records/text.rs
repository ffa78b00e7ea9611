//! Text of clients, made fit to be shown.

/// Characters of a client's text that a log line shows.
pub const SHOWN: usize = 256;

/// Text of a client on one line: characters that are [not printable](is_unprintable) become spaces, and what is longer
/// than `most` characters is cut, with an ellipsis at its end.
pub fn bounded(text: &str, most: usize) -> Box<str> {
    if text.len() <= most && is_plain(text) {
        return text.into();
    }
    let mut shown = String::new();
    push_bounded(&mut shown, text, most);
    shown.into()
}

/// Appends the same.
pub(super) fn push_bounded(shown: &mut String, text: &str, most: usize) {
    if text.len() <= most && is_plain(text) {
        shown.push_str(text);
        return;
    }
    let mut characters = text.chars();
    shown.extend(characters.by_ref().take(most).map(|each| if is_unprintable(each) { ' ' } else { each }));
    if characters.next().is_some() {
        shown.push('…');
    }
}

/// Returns `true` if a text is of visible ASCII and spaces, as nearly all are.
fn is_plain(text: &str) -> bool {
    // All bytes without a branch, many at once.
    text.bytes().fold(true, |is_plain, byte| is_plain & (b' '..=b'~').contains(&byte))
}

/// Returns `true` for control characters, and for those that a terminal doesn't show, or that change the direction or
/// the lines of its text.
pub fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_one_short_line() {
        let table = [
            ("llama", "llama"),
            ("", ""),
            ("a\nb\u{1b}[31m", "a b [31m"),
            ("a\u{202e}b", "a b"),
            ("a\u{61c}b\u{2066}", "a b "),
            ("12345678", "12345678"),
            ("ééééééééé", "éééééééé…"),
        ];
        for (given, shown) in table {
            assert_eq!(&*bounded(given, 8), shown, "{given:?}");
        }
        assert_eq!(bounded(&"x".repeat(1 << 20), 8).chars().count(), 9);
    }
}
