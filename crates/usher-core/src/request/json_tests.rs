use super::*;
use proptest::prelude::*;

#[derive(Debug, Default, PartialEq)]
struct Tape(Vec<(Token, Span, Vec<u8>)>);

impl Sink for Tape {
    fn token(&mut self, token: Token, span: Span, head: &[u8]) {
        self.0.push((token, span, head.to_vec()));
    }
}

fn scan(chunks: &[&[u8]]) -> Result<Tape, JsonError> {
    let (mut scanner, mut tape) = (Scanner::default(), Tape::default());
    for chunk in chunks {
        scanner.feed(chunk, &mut tape)?;
    }
    scanner.finish(&mut tape)?;
    Ok(tape)
}

#[test]
fn spans_are_between_the_quotes() {
    let text = br#"{"a": "b\n", "n": [-1.5e3, true, null]}"#;
    let tape = scan(&[text]).unwrap();
    let texts: Vec<_> = tape.0.iter().map(|(token, span, _)| (*token, &text[span.start..span.end])).collect();
    assert_eq!(
        texts,
        [
            (Token::ObjectStart, &b"{"[..]),
            (Token::Key, b"a"),
            (Token::String { escaped: true }, br"b\n"),
            (Token::Key, b"n"),
            (Token::ArrayStart, b"["),
            (Token::Number, b"-1.5e3"),
            (Token::True, b"true"),
            (Token::Null, b"null"),
            (Token::ArrayEnd, b"]"),
            (Token::ObjectEnd, b"}"),
        ]
    );
}

#[test]
fn syntax_errors_have_their_offset() {
    use JsonErrorKind::*;
    let table: [(&[u8], usize, JsonErrorKind); 16] = [
        (b"", 0, UnexpectedEnd),
        (b"{", 1, UnexpectedEnd),
        (b"{\"a\"", 4, UnexpectedEnd),
        (b"no healthy upstream", 1, Unexpected(b'o')),
        (b"{\"a\":1,}", 7, Unexpected(b'}')),
        (b"[1,]", 3, Unexpected(b']')),
        (b"[1}", 2, Unexpected(b'}')),
        (b"{1:2}", 1, Unexpected(b'1')),
        (b"01", 1, Unexpected(b'1')),
        (b"1.", 2, UnexpectedEnd),
        (b"-", 1, UnexpectedEnd),
        (b"1 2", 2, Unexpected(b'2')),
        (b"\"\\x\"", 2, Unexpected(b'x')),
        (b"\"\\u12g4\"", 5, Unexpected(b'g')),
        (b"\"a\nb\"", 2, ControlCharacter(b'\n')),
        (b"]", 0, Unexpected(b']')),
    ];
    for (text, offset, kind) in table {
        assert_eq!(scan(&[text]), Err(JsonError { offset, kind }), "{}", text.escape_ascii());
    }
}

#[test]
fn depth_is_limited_and_costs_a_bit_per_level() {
    let deep = |levels: usize| [vec![b'['; levels], vec![b']'; levels]].concat();
    assert!(scan(&[&deep(MAX_DEPTH)]).is_ok());
    let error = scan(&[&deep(MAX_DEPTH + 1)]).unwrap_err();
    assert_eq!(error, JsonError { offset: MAX_DEPTH, kind: JsonErrorKind::TooDeep });
}

proptest! {
    /// Any bytes: no panic, and accepted exactly when serde_json accepts them.
    #[test]
    fn agrees_with_serde_json(text in "[\\[\\]{}:,\"a0-9.eE+\\\\ntrufals\\- \n-]{0,24}") {
        let ours = scan(&[text.as_bytes()]).is_ok();
        // An IgnoredAny does not check lone surrogates and numbers out of range, and neither do we.
        let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
        prop_assert_eq!(ours, theirs, "{}", text);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = scan(&[&bytes]);
    }

    /// However a document is cut into chunks, the tokens are the same.
    #[test]
    fn tokens_do_not_depend_on_chunking(value in json(), cuts in prop::collection::vec(0usize..400, 0..6)) {
        let text = value.to_string();
        let bytes = text.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let chunks: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
        prop_assert_eq!(scan(&chunks), scan(&[bytes]));
    }
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "[a-z\"\\\\\u{e9}\n]{0,90}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::hash_map("[a-z]{0,8}", inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}
