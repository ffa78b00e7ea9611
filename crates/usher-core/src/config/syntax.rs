//! Errors for text that is not valid YAML, with hints on how to fix it.

use granit_parser::{ErrorKind, Marker, ScanError};

use super::error::{ConfigError, Position};

const NO_TABS: &str = "indent with spaces, YAML allows no tabs there";

/// The parser's error with its place and a hint.
pub(super) fn error(error: &ScanError) -> ConfigError {
    ConfigError::at(position(error.marker()), format!("not valid YAML: {}", error.info()))
        .hint(hint(error.kind()))
}

fn hint(kind: &ErrorKind) -> String {
    let text = match kind {
        ErrorKind::UnclosedFlowCollection { open } => {
            let close = if *open == '[' { ']' } else { '}' };
            return format!("add the closing '{close}'");
        }
        ErrorKind::MismatchedFlowCollectionEnd { .. } | ErrorKind::MisplacedFlowCollectionEnd => {
            "close every [ with ] and every { with }"
        }
        ErrorKind::UnclosedQuotedScalar => "add the closing quote",
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabAtBlockScalarStart
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar => NO_TABS,
        ErrorKind::MappingValueNotAllowed => {
            "check the indentation, and put text that contains ': ' in quotes"
        }
        ErrorKind::UnknownAnchor => "define it with & before it is used, or put the text in quotes",
        _ => "check the indentation and the quotes here and in the line before",
    };
    text.to_owned()
}

/// Refuses a tab before the first key or item of a block. The parser refuses
/// those before all others, and the ones between the brackets of JSON are fine.
pub(super) fn no_tab_before(text: &str, start: &Marker) -> Result<(), ConfigError> {
    let before = start.byte_offset().and_then(|offset| text.get(..offset)).unwrap_or_default();
    let line = before.rsplit(['\n', '\r']).next().unwrap_or_default();
    match line.find('\t') {
        Some(tab) if line.trim().is_empty() => {
            let at = Position { column: number(tab).saturating_add(1), ..position(start) };
            Err(ConfigError::at(at, "not valid YAML: tab in the indentation").hint(NO_TABS))
        }
        _ => Ok(()),
    }
}

pub(super) fn position(mark: &Marker) -> Position {
    Position { line: number(mark.line()).max(1), column: number(mark.col()).saturating_add(1) }
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use crate::config::Node;

    #[test]
    fn syntax_errors_have_position_and_hint() {
        // text, place, message, hint
        let table = [
            ("a: [", "1:4", "unclosed bracket '['", "add the closing ']'"),
            ("a: {b: 1", "1:4", "unclosed bracket '{'", "add the closing '}'"),
            ("a: [}", "1:4", "mismatched bracket", "close every [ with ]"),
            ("a: \"b", "1:4", "unclosed quote", "add the closing quote"),
            ("a: b: c", "1:5", "mapping values are not allowed", "in quotes"),
            ("a: *b", "1:4", "unknown anchor", "define it with &"),
            ("a: %b", "1:4", "unexpected character", "check the indentation and the quotes"),
        ];
        for (text, place, message, hint) in table {
            let line = Node::parse(text).unwrap_err().in_file("f");
            assert!(line.starts_with(&format!("f:{place}: not valid YAML: ")), "{text:?}: {line}");
            assert!(line.contains(message) && line.contains(hint), "{text:?}: {line}");
        }
    }

    #[test]
    fn tabs_may_indent_json_only() {
        let table = [
            ("\ta: 1\n", "1:1"),
            (" \ta: 1\n", "1:2"),
            ("\t- a\n", "1:1"),
            ("# é\r\n\ta: 1\n", "2:1"),
            ("a:\n\tb: 1\n", "2:2"),
            ("a:\n\t- b\n", "2:2"),
        ];
        for (text, place) in table {
            let line = Node::parse(text).unwrap_err().in_file("f");
            assert!(line.starts_with(&format!("f:{place}: not valid YAML: tab")), "{text:?}: {line}");
            assert!(line.ends_with("(indent with spaces, YAML allows no tabs there)"), "{text:?}: {line}");
        }
        for text in
            ["\t{\"a\":\t[\n\t\t1\n\t]\n}\n", "\t# comment\na: 1\n\t\n", "a:\t1\n", "a: 1\t# comment\n"]
        {
            assert!(Node::parse(text).is_ok(), "{text:?} {:?}", Node::parse(text));
        }
    }
}
