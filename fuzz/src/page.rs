//! Responses of model servers, and the pages in them.

use std::io::Read;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use futures_util::future::join3;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use usher::scrape::{Encoding, Head, PageReader, Part, ResponseReader};

use super::input::Input;

/// The largest page that is read.
const LIMIT: usize = 2000;

/// Head, body, and whether the connection can be used again; `None`: this is no response.
type ParsedResponse = Option<(Head, Vec<u8>, bool)>;

/// The first line names chunk sizes, the rest is what a server sends before it closes.
///
/// - Every split reads the same, and so does a second response.
/// - What hyper reads, too, has the same status and the same body.
/// - A page is no larger than allowed, and is the body or what it inflates to.
pub fn page(bytes: &[u8]) {
    let input = Input::of(bytes);
    let mut response = ResponseReader::default();
    let [whole, others @ ..] = input.splits(0).map(|pieces| {
        response.restart();
        read(&mut response, &pieces)
    });
    for other in others {
        assert_eq!(whole, other, "another split reads differently");
    }
    if let (Some((head, body, _)), Some((status, theirs))) = (&whole, theirs(input.data)) {
        assert_eq!((head.status, body), (status, &theirs), "ours and hyper's");
    }
    let mut page = PageReader::new(LIMIT);
    let [first, others @ ..] = input.splits(0).map(|pieces| {
        page.restart();
        read_page(&mut page, &pieces)
    });
    for other in others {
        assert_eq!(first, other, "another split has another page");
    }
    let Some(text) = first else { return };
    let (head, body, _) = whole.expect("a page is in a response");
    assert!(text.len() <= LIMIT && head.status == 200);
    match head.encoding {
        Encoding::Identity => assert_eq!(text, body),
        Encoding::Gzip => {
            let mut inflated = Vec::new();
            MultiGzDecoder::new(body.as_slice()).read_to_end(&mut inflated).expect("it was inflated once");
            assert_eq!(text, inflated);
        }
        Encoding::Other => panic!("nobody can read that"),
    }
}

fn read(reader: &mut ResponseReader, pieces: &[Bytes]) -> ParsedResponse {
    let (mut head, mut body) = (None, Vec::new());
    for piece in pieces {
        let mut rest: &[u8] = piece;
        loop {
            match reader.next(&mut rest).ok()? {
                Part::Head(first) => assert_eq!(head.replace(first), None, "one head"),
                Part::Body(bytes) => body.extend_from_slice(bytes),
                Part::End { reusable } => return Some((head?, body, reusable)),
                Part::More => break,
            }
        }
        assert!(rest.is_empty(), "everything is taken");
    }
    reader.closed().ok()?;
    Some((head?, body, false))
}

fn read_page(reader: &mut PageReader, pieces: &[Bytes]) -> Option<Vec<u8>> {
    let mut page = Vec::new();
    for piece in pieces {
        if reader.feed(piece, &mut |text| page.extend_from_slice(text)).ok()?.is_some() {
            return Some(page);
        }
    }
    reader.closed(&mut |text| page.extend_from_slice(text)).ok()?;
    Some(page)
}

/// Status and body of a response as hyper reads it; `None`: it reports an error.
fn theirs(response: &[u8]) -> Option<(u16, Vec<u8>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let (client, mut server) = tokio::io::duplex(1 << 16);
        let (mut sender, connection) = http1::handshake(TokioIo::new(client)).await.ok()?;
        let request = Request::get("/").header("host", "a").body(Empty::<Bytes>::new()).ok()?;
        let exchange = async {
            let response = sender.send_request(request).await.ok()?;
            let status = response.status().as_u16();
            Some((status, response.into_body().collect().await.ok()?.to_bytes().to_vec()))
        };
        let serve = async {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(server.read_u8().await.ok()?);
            }
            server.write_all(response).await.ok()?;
            server.shutdown().await.ok()
        };
        let (_, _, read) = join3(connection, serve, exchange).await;
        read
    })
}
