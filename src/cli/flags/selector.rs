//! The syntax of label selectors, as of `kubectl -l`. The API server checks it, too, but
//! when it is asked first; who made a mistake wants to know at the start.

/// Longest name of a label, and longest value, in characters.
const LONGEST: usize = 63;

/// Longest prefix of a label's name, in characters.
const LONGEST_PREFIX: usize = 253;

/// Checks a selector: requirements with commas between, each one of `key`, `!key`,
/// `key=value`, `key==value`, `key!=value`, `key in (a,b)`, `key notin (a,b)`, `key>1`,
/// `key<1`.
///
/// # Errors
/// The mistake, the character where it is (from 1), and the correct form.
pub(super) fn check(selector: &str) -> Result<(), String> {
    let mut reader = Reader { text: selector, at: 0 };
    loop {
        reader.requirement()?;
        match reader.next() {
            (_, Token::End) => return Ok(()),
            (_, Token::Comma) => {}
            (at, found) => return Err(reader.expected(at, "a comma or the end", found)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    End,
    Comma,
    Open,
    Close,
    Not,
    /// `=` or `==`.
    Equals,
    NotEquals,
    /// `<` or `>`.
    Compares,
    Word(&'a str),
}

struct Reader<'a> {
    text: &'a str,
    /// The byte to go on from.
    at: usize,
}

impl<'a> Reader<'a> {
    fn requirement(&mut self) -> Result<(), String> {
        let (at, first) = self.next();
        let (at, negated, key) = match first {
            Token::Not => {
                let (at, key) = self.next();
                (at, true, key)
            }
            key => (at, false, key),
        };
        let Token::Word(key) = key else {
            return Err(self.expected(at, "the name of a label", key));
        };
        check_key(key).map_err(|problem| self.at(at, &problem))?;
        if negated {
            return Ok(());
        }
        let before = self.at;
        match self.next() {
            (_, Token::Equals | Token::NotEquals) => self.value().map(drop),
            (_, Token::Compares) => self.number(),
            (_, Token::Word("in" | "notin")) => self.values(),
            (_, Token::End | Token::Comma) => {
                // Of whoever comes next.
                self.at = before;
                Ok(())
            }
            (at, found) => Err(self.expected(at, "=, !=, in, notin, a comma or the end", found)),
        }
    }

    /// A value, which may be empty.
    fn value(&mut self) -> Result<(), String> {
        let before = self.at;
        let (at, found) = self.next();
        match found {
            Token::Word(value) => check_value(value).map_err(|problem| self.at(at, &problem)),
            Token::End | Token::Comma | Token::Close => {
                self.at = before;
                Ok(())
            }
            _ => Err(self.expected(at, "a value", found)),
        }
    }

    fn number(&mut self) -> Result<(), String> {
        let (at, found) = self.next();
        match found {
            // No sign: it is a value, too.
            Token::Word(word) if word.parse::<i64>().is_ok() && is_name(word) => Ok(()),
            _ => Err(self.expected(at, "a whole number", found)),
        }
    }

    /// Values in parentheses.
    fn values(&mut self) -> Result<(), String> {
        let (at, found) = self.next();
        if found != Token::Open {
            return Err(self.expected(at, "( and values", found));
        }
        loop {
            self.value()?;
            match self.next() {
                (_, Token::Close) => return Ok(()),
                (_, Token::Comma) => {}
                (at, found) => return Err(self.expected(at, "a comma or )", found)),
            }
        }
    }

    /// The next token and the byte where it begins.
    fn next(&mut self) -> (usize, Token<'a>) {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let start = self.text.len() - rest.len();
        let symbols = [
            ("==", Token::Equals),
            ("!=", Token::NotEquals),
            ("=", Token::Equals),
            ("!", Token::Not),
            (",", Token::Comma),
            ("(", Token::Open),
            (")", Token::Close),
            ("<", Token::Compares),
            (">", Token::Compares),
        ];
        let (length, token) = match symbols.iter().find(|(symbol, _)| rest.starts_with(symbol)) {
            _ if rest.is_empty() => (0, Token::End),
            Some((symbol, token)) => (symbol.len(), *token),
            None => {
                let end = rest.find([' ', '\t', '\r', '\n', '=', '!', ',', '(', ')', '<', '>']);
                let word = &rest[..end.unwrap_or(rest.len())];
                (word.len(), Token::Word(word))
            }
        };
        self.at = start + length;
        (start, token)
    }

    fn expected(&self, at: usize, what: &str, found: Token<'_>) -> String {
        let found = match found {
            Token::End => "the end".to_owned(),
            Token::Word(word) => format!("{word:?}"),
            _ => format!("{:?}", self.text.get(at..self.at).unwrap_or_default()),
        };
        self.at(at, &format!("{what} is expected, not {found}"))
    }

    fn at(&self, at: usize, problem: &str) -> String {
        let place = self.text.get(..at).map_or(0, |before| before.chars().count()) + 1;
        format!("at character {place} of {:?}: {problem}", self.text)
    }
}

/// A label's name: `[prefix/]name`.
fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if let Some(prefix) = prefix {
        let part = |part: &str| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            part.starts_with(inner) && part.ends_with(inner) && part.chars().all(|c| inner(c) || c == '-')
        };
        if prefix.len() > LONGEST_PREFIX || !prefix.split('.').all(part) {
            return Err(format!(
                "{prefix:?} is no prefix of a label; write a DNS name in lower case, for example example.com"
            ));
        }
    }
    if name.is_empty() || !is_name(name) {
        return Err(format!(
            "{name:?} is no name of a label; write at most {LONGEST} letters, digits, -, _ and ., a letter or digit first and last"
        ));
    }
    Ok(())
}

fn check_value(value: &str) -> Result<(), String> {
    if is_name(value) {
        return Ok(());
    }
    Err(format!(
        "{value:?} is no value of a label; write at most {LONGEST} letters, digits, -, _ and ., a letter or digit first and last"
    ))
}

/// Checks the syntax of label values; that of label names is the same, but they aren't empty.
fn is_name(text: &str) -> bool {
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.is_empty()
        || text.len() <= LONGEST
            && text.starts_with(outer)
            && text.ends_with(outer)
            && text.chars().all(|c| outer(c) || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_have_their_position() {
        // selector, place, what is said
        let table = [
            ("", 1, "the name of a label is expected, not the end"),
            ("app=a,", 7, "the name of a label is expected, not the end"),
            ("app=a,,x", 7, "the name of a label is expected, not \",\""),
            ("app in", 7, "( and values is expected, not the end"),
            ("app in (a,b", 12, "a comma or ) is expected, not the end"),
            ("app in (=)", 9, "a value is expected, not \"=\""),
            ("app in (a b)", 11, "a comma or ) is expected, not \"b\""),
            ("app is a", 5, "=, !=, in, notin, a comma or the end is expected, not \"is\""),
            ("app=a b", 7, "a comma or the end is expected, not \"b\""),
            ("!app=a", 5, "a comma or the end is expected, not \"=\""),
            ("app===a", 6, "a value is expected, not \"=\""),
            ("app>many", 5, "a whole number is expected"),
            ("app>-1", 5, "a whole number is expected"),
            ("app=-a", 5, "\"-a\" is no value of a label"),
            ("äpp=a", 1, "\"äpp\" is no name of a label"),
            ("app=ä,b=c d", 5, "\"ä\" is no value"),
            ("App.Example/app", 1, "is no prefix of a label"),
            ("example.com/", 1, "\"\" is no name of a label"),
            ("a/b/c", 1, "\"b/c\" is no name of a label"),
        ];
        for (selector, place, says) in table {
            let error = check(selector).unwrap_err();
            assert!(error.starts_with(&format!("at character {place} of ")), "{selector}: {error}");
            assert!(error.contains(says) && !error.contains('\n'), "{selector}: {error}");
        }
        let long = "x".repeat(64);
        assert!(check(&long).is_err() && check(&format!("a={long}")).is_err());
        assert!(check(&long[1..]).is_ok() && check(&format!("a={}", &long[1..])).is_ok());
    }

    proptest! {
        #[test]
        fn random_text_never_panics(text in "[a-c=!<>(), ä/.\\-]{0,16}") {
            let _ = check(&text);
        }
    }
}
