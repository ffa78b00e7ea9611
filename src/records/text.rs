//! Text of clients, made fit to be shown.

/// Text of a client on one line: control characters become spaces, and what is longer than `most` characters is
/// cut, with an ellipsis at its end.
pub fn bounded(text: &str, most: usize) -> Box<str> {
    let is_fit = text.len() <= most && !text.chars().any(is_unfit);
    if is_fit {
        return text.into();
    }
    let mut characters = text.chars();
    let mut shown: String =
        characters.by_ref().take(most).map(|each| if is_unfit(each) { ' ' } else { each }).collect();
    if characters.next().is_some() {
        shown.push('…');
    }
    shown.into()
}

/// Control characters, and those that change the direction or the lines of a terminal.
fn is_unfit(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::bounded;

    #[test]
    fn text_is_one_short_line() {
        let table = [
            ("llama", "llama"),
            ("", ""),
            ("a\nb\u{1b}[31m", "a b [31m"),
            ("a\u{202e}b", "a b"),
            ("12345678", "12345678"),
            ("ééééééééé", "éééééééé…"),
        ];
        for (given, shown) in table {
            assert_eq!(&*bounded(given, 8), shown, "{given:?}");
        }
        assert_eq!(bounded(&"x".repeat(1 << 20), 8).chars().count(), 9);
    }
}
