//! Responses of servers, whole, split at every byte, and broken.

use proptest::prelude::*;

use super::*;

/// The body and whether the connection can be used again, or why there is no whole response.
type Read = Result<(Vec<u8>, bool), ResponseError>;

/// Reads pieces, behind which the connection is closed.
fn read(pieces: &[&[u8]]) -> (Option<Head>, Read) {
    let mut reader = ResponseReader::default();
    let (mut head, mut body) = (None, Vec::new());
    for mut piece in pieces.iter().copied() {
        loop {
            match reader.next(&mut piece) {
                Err(error) => return (head, Err(error)),
                Ok(Part::Head(first)) => assert_eq!(head.replace(first), None, "one head"),
                Ok(Part::Body(bytes)) => {
                    assert!(!bytes.is_empty() && head.is_some());
                    body.extend_from_slice(bytes);
                }
                Ok(Part::End { reusable }) => return (head, Ok((body, reusable))),
                Ok(Part::More) => break,
            }
        }
        assert_eq!(piece, b"", "everything is taken");
    }
    (head, reader.closed().map(|()| (body, false)))
}

/// Reads the response whole, and split at every byte, which has to be the same.
fn read_split(response: &[u8]) -> (Option<Head>, Read) {
    let whole = read(&[response]);
    for at in 0..=response.len() {
        let (start, end) = response.split_at(at);
        assert_eq!(read(&[start, end]), whole, "split at {at}");
    }
    assert_eq!(read(&response.chunks(1).collect::<Vec<_>>()), whole, "byte by byte");
    whole
}

#[test]
fn body_length_follows_the_framing_headers() {
    // the response, the body, whether the connection can be used again
    let table = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na:x 1", "a:x 1", true),
        ("HTTP/1.1 200 OK\r\ncontent-length:3 \r\ncontent-length: 3\r\n\r\na 1", "a 1", true),
        ("HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", "", true),
        ("HTTP/1.1 200 OK\ncontent-length: 3\n\na 1", "a 1", true),
        ("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 3\r\n\r\na 1", "a 1", false),
        ("HTTP/1.1 200 OK\r\nconnection: x, Close, keep-alive\r\ncontent-length: 0\r\n\r\n", "", false),
        ("HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\na 1", "a 1", false),
        ("HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 3\r\n\r\na 1", "a 1", true),
        ("HTTP/1.1 200 OK\r\n\r\nuntil\r\nclosed", "until\r\nclosed", false),
        ("HTTP/1.1 204 No Content\r\n\r\n", "", true),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", "", true),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\na 1\r\n0\r\n\r\n", "a 1", true),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1;x=\"y\"\r\na\r\n00a\r\n0123456789\r\n000\r\nt: 1\r\nu: 2\r\n\r\n",
            "a0123456789",
            true,
        ),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n0\r\n\r\n", "", false),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na",
            "a",
            true,
        ),
    ];
    for (response, body, reusable) in table {
        let (head, read) = read_split(response.as_bytes());
        assert_eq!(read, Ok((body.as_bytes().to_vec(), reusable)), "{response:?}");
        assert!(head.is_some_and(|head| head.status >= 200), "{response:?}");
    }
}

#[test]
fn malformed_response_is_refused_at_any_split() {
    let malformed = |text: &str| {
        let (_, read) = read_split(text.as_bytes());
        assert!(matches!(read, Err(ResponseError::Malformed(_))), "{text:?}: {read:?}");
    };
    let heads = [
        "hello",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 20x OK\r\n\r\n",
        "HTTP/1.1 099 Odd\r\n\r\n",
        "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1, 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
    ];
    heads.into_iter().for_each(malformed);
    for chunks in
        ["x\r\n", "\r\n", "-1\r\n", "+1\r\n", "10000000000000000\r\n", "1\n", "1\r\nab\r\n", "1 1\r\n"]
    {
        malformed(&format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"));
    }
}

#[test]
fn truncated_response_is_an_error() {
    let responses = [
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\na 1",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\na 1\r\n0\r\nt: 1\r\n\r\n",
    ];
    for response in responses {
        assert_eq!(read(&[]).1, Err(ResponseError::Closed));
        for end in 1..response.len() {
            let (_, read) = read_split(&response.as_bytes()[..end]);
            assert_eq!(read, Err(ResponseError::Cut), "{:?}", &response[..end]);
        }
    }
    let (_, interim) = read(&[b"HTTP/1.1 100 Continue\r\n\r\n"]);
    assert_eq!(interim, Err(ResponseError::Cut));
}

#[test]
fn head_chunk_lines_and_trailers_are_bounded() {
    let too_long = |response: String| {
        let pieces: Vec<&[u8]> = response.as_bytes().chunks(1000).collect();
        for read in [read(&[response.as_bytes()]).1, read(&pieces).1] {
            assert!(matches!(read, Err(ResponseError::TooLong(_))), "{read:?}");
        }
    };
    let endless = |line: &str| line.repeat(200_000 / line.len());
    too_long(format!("HTTP/1.1 200 OK\r\nx: {}", endless("y")));
    too_long(format!("HTTP/1.1 200 OK\r\n{}", endless("x: y\r\n")));
    too_long(format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(17 << 10)));
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    too_long(format!("{chunked}{}", endless("0")));
    too_long(format!("{chunked}1;{}", endless("x")));
    too_long(format!("{chunked}0\r\n{}", endless("trailer: value\r\n")));
    let hints = "HTTP/1.1 103 Early Hints\r\n\r\n";
    assert!(matches!(read(&[hints.repeat(9).as_bytes()]).1, Err(ResponseError::Malformed(_))));
}

#[test]
fn status_encoding_and_length_are_read_from_the_head() {
    let head = |lines: &str| {
        let response = format!("HTTP/1.1 503 Busy\r\n{lines}content-length: 0\r\n\r\n");
        read(&[response.as_bytes()]).0.unwrap()
    };
    let of = |encoding| Head { status: 503, encoding, length: Some(0) };
    let table = [
        ("", Encoding::Identity),
        ("content-encoding: identity\r\n", Encoding::Identity),
        ("Content-Encoding:  GZip \r\n", Encoding::Gzip),
        ("content-encoding: x-gzip\r\n", Encoding::Gzip),
        ("content-encoding: gzip, gzip\r\n", Encoding::Other),
        ("content-encoding: gzip\r\ncontent-encoding: gzip\r\n", Encoding::Other),
        ("content-encoding: br\r\n", Encoding::Other),
    ];
    for (lines, encoding) in table {
        assert_eq!(head(lines), of(encoding), "{lines:?}");
    }
    let (head, _) = read(&[b"HTTP/1.1 200 OK\r\n\r\n"]);
    assert_eq!(head.unwrap().length, None);
}

#[test]
fn reader_stops_at_the_end_of_each_response() {
    let mut reader = ResponseReader::default();
    let response = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na and more";
    for _ in 0..2 {
        let mut rest: &[u8] = response;
        assert!(matches!(reader.next(&mut rest), Ok(Part::Head(_))));
        assert_eq!(reader.next(&mut rest), Ok(Part::Body(b"a")));
        assert_eq!(reader.next(&mut rest), Ok(Part::End { reusable: true }));
        assert_eq!(rest, b" and more", "which belongs to no response");
        reader.restart();
    }
}

proptest! {
    #[test]
    fn chunked_body_is_read_back_at_any_split(
        body in prop::collection::vec(any::<u8>(), 0..300),
        chunk in 1_usize..50,
        piece in 1_usize..50,
    ) {
        let mut response = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        for chunk in body.chunks(chunk) {
            response.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
            response.extend_from_slice(chunk);
            response.extend_from_slice(b"\r\n");
        }
        response.extend_from_slice(b"0\r\n\r\n");
        let pieces: Vec<&[u8]> = response.chunks(piece).collect();
        prop_assert_eq!(read(&pieces).1, Ok((body, true)));
    }

    #[test]
    fn random_bytes_are_read_alike_at_any_split(bytes in prop::collection::vec(any::<u8>(), 0..200), piece in 1_usize..20) {
        let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
        let response = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", bytes.as_slice()].concat();
        let later: Vec<&[u8]> = response.chunks(piece).collect();
        for (whole, pieces) in [(&bytes, &pieces), (&response, &later)] {
            let (whole, pieces) = (read(&[whole]).1, read(pieces).1);
            // Which rule is broken first depends on how much is there.
            prop_assert!(whole == pieces || whole.is_err() && pieces.is_err(), "{:?} {:?}", whole, pieces);
        }
    }
}
