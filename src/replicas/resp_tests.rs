//! Replies within and beyond the bounds, and commands.

use proptest::prelude::*;

use super::*;

fn read(bytes: &[u8]) -> Result<Option<Value>, Malformed> {
    Decoder { bytes: bytes.into(), ..Decoder::default() }.next()
}

fn text(text: &str) -> Value {
    Value::Text(text.as_bytes().to_vec())
}

#[test]
fn commands_are_lists_of_texts() {
    let mut out = Vec::new();
    command(&[b"PUBLISH", b"c", b"a\r\nb"], &mut out);
    assert_eq!(out, b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n$4\r\na\r\nb\r\n");
}

#[test]
fn every_type_is_read_and_needs_all_its_bytes() {
    let table: [(&[u8], Value); 14] = [
        (b"+OK\r\n", text("OK")),
        (b"-NOAUTH no\r\n", Value::Error(b"NOAUTH no".to_vec())),
        (b":-3\r\n", Value::Integer(-3)),
        (b"_\r\n", Value::Null),
        (b"#t\r\n", Value::Integer(1)),
        (b",1.5\r\n", text("1.5")),
        (b"$3\r\na\r\n\r\n", Value::Text(b"a\r\n".to_vec())),
        (b"$-1\r\n", Value::Null),
        (b"*-1\r\n", Value::Null),
        (b"!5\r\nERR x\r\n", Value::Error(b"ERR x".to_vec())),
        (b"=5\r\ntxt:a\r\n", text("a")),
        (b"*2\r\n:1\r\n*1\r\n+a\r\n", Value::List(vec![Value::Integer(1), Value::List(vec![text("a")])])),
        (b"%1\r\n+role\r\n+master\r\n", Value::List(vec![text("role"), text("master")])),
        (b">2\r\n+message\r\n$1\r\nx\r\n", Value::Push(vec![text("message"), text("x")])),
    ];
    for (bytes, value) in table {
        assert_eq!(read(bytes), Ok(Some(value)), "{bytes:?}");
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length]), Ok(None), "{bytes:?} {length}");
        }
    }
    let map = read(b"%2\r\n+mode\r\n+standalone\r\n+role\r\n+replica\r\n").unwrap().unwrap();
    assert_eq!((map.field(b"role"), map.field(b"none")), (Some(&b"replica"[..]), None));
}

#[test]
fn values_follow_each_other() {
    let mut decoder = Decoder { bytes: BytesMut::from(&b":1\r\n:2\r\n:"[..]), ..Decoder::default() };
    assert_eq!(decoder.next(), Ok(Some(Value::Integer(1))));
    assert_eq!(decoder.next(), Ok(Some(Value::Integer(2))));
    assert_eq!(decoder.next(), Ok(None));
    assert_eq!(&decoder.bytes[..], b":");
}

#[test]
fn replies_beyond_the_bounds_are_refused_before_they_are_there() {
    let deep = b"*1\r\n".repeat(MOST_DEPTH + 2);
    let many = b"*2000\r\n".repeat(MOST_DEPTH);
    let skipped = b"*4096\r\n".repeat(300);
    let line = [b"+".to_vec(), b"x".repeat(MOST_LINE + 2)].concat();
    for bytes in [
        &b"*1000000000\r\n"[..],
        b"*999999999999\r\n",
        b"%600000\r\n",
        &deep,
        &skipped,
        &line,
        b"?1\r\n",
        b":x\r\n",
    ] {
        assert!(read(bytes).is_err(), "{bytes:?}");
    }
    assert!(read(b"$1\r\nabc").is_err());
    assert!(read(&many).is_ok(), "a depth that is allowed, and incomplete");
    let text = [&b"+"[..], &b"x".repeat(4000), b"\r\n"].concat();
    let bytes = [&b">1200\r\n"[..], &text.repeat(1100)].concat();
    assert_eq!(read(&bytes), Err(Malformed("a reply is too long")));
}

#[test]
fn texts_that_are_too_long_are_left_out_without_being_kept() {
    let long = |length: usize| [format!("${length}\r\n").as_bytes(), &b"x".repeat(length), b"\r\n"].concat();
    // Of those that have room the first two do, and a short one behind them does.
    let parts = [
        b">6\r\n".to_vec(),
        long(5 << 20),
        long(900_000),
        long(900_000),
        long(900_000),
        long(65_536),
        long(3),
    ];
    let bytes = [&parts.concat()[..], b":7\r\n"].concat();
    for piece in [1000, 65_536, bytes.len()] {
        let (mut decoder, mut read) = (Decoder::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            decoder.bytes.extend_from_slice(piece);
            read.extend(decoder.next().unwrap());
            assert!(decoder.bytes.len() <= MOST_REPLY || piece.len() > MOST_REPLY);
        }
        read.extend(decoder.next().unwrap());
        let lengths = |value: &Value| match value {
            Value::LeftOut(bytes) => Err(*bytes),
            value => Ok(value.text().unwrap().len()),
        };
        let [Value::Push(texts), Value::Integer(7)] = &read[..] else { panic!("{}", read.len()) };
        let expected = [Err(5 << 20), Ok(900_000), Ok(900_000), Err(900_000), Ok(65_536), Ok(3)];
        assert_eq!(texts.iter().map(lengths).collect::<Vec<_>>(), expected);
    }
    let lie = [&b"$2000000\r\n"[..], &b"x".repeat(2_000_000), b"xx\r\n"].concat();
    assert!(read(&lie).is_err(), "it does not end where it says");
}

#[test]
fn lists_that_are_too_long_are_left_out_with_all_that_is_in_them() {
    let fields = |count: usize, length: usize| {
        let text = [format!("${length}\r\n").as_bytes(), &b"y".repeat(length), b"\r\n"].concat();
        [format!("*{count}\r\n").into_bytes(), text.repeat(count)].concat()
    };
    let entry = |id: &str, fields: Vec<u8>| [format!("*2\r\n+{id}\r\n").into_bytes(), fields].concat();
    let nested = [&b"%1100\r\n"[..], &b"+k\r\n*2\r\n$-1\r\n~1\r\n:1\r\n".repeat(1100)].concat();
    // Of three lists that would fit alone two do, and texts have room where they are short.
    let page = [
        b"*16\r\n".to_vec(),
        entry("a", fields(500_000, 3)),
        entry("b", nested),
        entry("c", fields(1000, 1000)),
        entry("d", fields(900, 2000)),
        entry("e", fields(900, 3)),
        (0..10).flat_map(|_| entry("f", fields(16, 60_000))).collect(),
        entry("g", fields(2, 3)),
    ];
    let bytes = [&page.concat()[..], b":7\r\n"].concat();
    for piece in [9973, 65_536, bytes.len()] {
        let (mut decoder, mut read) = (Decoder::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            decoder.bytes.extend_from_slice(piece);
            read.extend(decoder.next().unwrap());
            assert!(decoder.bytes.len() <= MOST_REPLY || piece.len() > MOST_REPLY);
        }
        read.extend(decoder.next().unwrap());
        let [Value::List(entries), Value::Integer(7)] = &read[..] else { panic!("{}", read.len()) };
        let of = |entry: &Value| {
            let Value::List(parts) = entry else { panic!("{entry:?}") };
            let Value::List(fields) = &parts[1] else { return (parts[0].clone(), None) };
            (parts[0].clone(), Some(fields.iter().filter(|field| field.text().is_some()).count()))
        };
        let read: Vec<(Value, Option<usize>)> = entries.iter().map(of).collect();
        assert_eq!(read.len(), 16);
        let expected = [("a", None), ("b", None), ("c", Some(1000)), ("d", Some(900)), ("e", None)];
        for ((id, texts), read) in expected.into_iter().zip(&read) {
            assert_eq!((text(id), texts), *read);
        }
        let Value::List(first) = &entries[0] else { panic!("{entries:?}") };
        assert_eq!(first[1], Value::LeftOut(500_000 * 9));
        assert_eq!(read[5], (text("f"), Some(5)));
        assert_eq!(read[15], (text("g"), Some(2)));
    }
}

#[test]
fn cut_reply_has_received_parts_and_missing_sizes() {
    let cut = |reply: &str| {
        let mut decoder = Decoder { bytes: reply.as_bytes().into(), ..Decoder::default() };
        assert_eq!(decoder.next(), Ok(None), "{reply}");
        decoder.cut_short()
    };
    let entry =
        |fields: Vec<Value>| Some(Value::List(vec![Value::List(vec![text("5-1"), Value::List(fields)])]));
    let begin = "*1\r\n*2\r\n+5-1\r\n";
    let bytes = 3 << 30_u64;
    let (long, left_out) = (format!("${bytes}\r\nxxxx"), Value::LeftOut(bytes));
    assert_eq!(cut(&format!("{begin}*2\r\n+b\r\n{long}")), entry(vec![text("b"), left_out.clone()]));
    assert_eq!(cut(&format!("{begin}*4\r\n{long}")), entry(vec![left_out]));
    let list = Value::List(vec![Value::List(vec![text("5-1"), Value::LeftOut(8 + 10)])]);
    assert_eq!(cut(&format!("{begin}*9000\r\n$2\r\nab\r\n$4\r\nx")), Some(list));
    let slow = Value::LeftOut(65_537);
    assert_eq!(cut(&format!("{begin}*2\r\n+b\r\n$65537\r\nxxxx")), entry(vec![text("b"), slow.clone()]));
    assert_eq!(cut("$65537\r\n"), Some(slow));
    for reply in ["", begin, &format!("{begin}*2\r\n+b\r\n$65536\r\nxxxx")] {
        assert_eq!(cut(reply), None, "nothing is left out: {reply}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut decoder = Decoder { bytes: bytes[..].into(), ..Decoder::default() };
        while let Ok(Some(_)) = decoder.next() {}
        decoder.cut_short();
    }

    #[test]
    fn bytes_that_look_like_replies_are_read_or_refused(
        parts in proptest::collection::vec(
            proptest::sample::select(vec!["*2\r\n", "$3\r\n", "abc\r\n", ">1\r\n", "%1\r\n", "-ERR\r\n", ":9\r\n", "\r\n", "=2\r\n", "$-1\r\n"]),
            0..40,
        ),
    ) {
        let mut decoder = Decoder { bytes: parts.concat().as_bytes().into(), ..Decoder::default() };
        while let Ok(Some(_)) = decoder.next() {}
    }
}
