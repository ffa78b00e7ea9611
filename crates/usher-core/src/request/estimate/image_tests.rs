//! Sizes of images that are put together byte by byte.

use proptest::prelude::*;

use super::*;

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let sextet = (bits >> (18 - 6 * place)) as usize & 63;
            text.push(if place <= group.len() { char::from(ALPHABET[sextet]) } else { '=' });
        }
    }
    text
}

/// The size of an image that is plain base64, and that of one behind a URL's head.
fn both(bytes: &[u8]) -> [Option<(u32, u32)>; 2] {
    let data = base64(bytes);
    [data.clone(), format!("data:image/png;base64,{data}")].map(|text| of(&text))
}

fn of(text: &str) -> Option<(u32, u32)> {
    size(|at| text.as_bytes().get(at).copied())
}

fn png(width: u32, height: u32) -> Vec<u8> {
    let start: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR";
    [start, &width.to_be_bytes(), &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat()
}

fn gif(width: u16, height: u16) -> Vec<u8> {
    [&b"GIF89a"[..], &width.to_le_bytes(), &height.to_le_bytes(), &[0; 3]].concat()
}

fn webp(chunk: &[u8; 4], content: &[u8]) -> Vec<u8> {
    [b"RIFF\0\0\0\0WEBP", &chunk[..], &[0; 4], content].concat()
}

fn segment(marker: u8, content: &[u8]) -> Vec<u8> {
    [&[0xff, marker], &(content.len() as u16 + 2).to_be_bytes()[..], content].concat()
}

fn jpeg(before: &[Vec<u8>], marker: u8, width: u16, height: u16) -> Vec<u8> {
    let frame = [&[8][..], &height.to_be_bytes(), &width.to_be_bytes(), &[3, 1, 0x22, 0]].concat();
    [&[0xff, 0xd8], &before.concat()[..], &segment(marker, &frame)].concat()
}

#[test]
fn the_size_is_read_from_every_format() {
    let lossless = (799u32 | 599 << 14 | 1 << 28).to_le_bytes();
    let app = segment(0xe0, b"JFIF\0rest");
    let table = [
        ("png", png(1920, 1080), Some((1920, 1080))),
        ("gif", gif(320, 200), Some((320, 200))),
        (
            "lossy webp",
            webp(b"VP8 ", &[0, 0, 0, 0x9d, 0x01, 0x2a, 0x20, 0x43, 0x58, 0x82]),
            Some((0x320, 0x258)),
        ),
        ("lossless webp", webp(b"VP8L", &[&[0x2f], &lossless[..]].concat()), Some((800, 600))),
        ("extended webp", webp(b"VP8X", &[0, 0, 0, 0, 0xff, 0x0f, 0, 0x37, 0x04, 0]), Some((4096, 1080))),
        ("jpeg", jpeg(std::slice::from_ref(&app), 0xc0, 640, 480), Some((640, 480))),
        ("progressive jpeg", jpeg(&[], 0xc2, 641, 481), Some((641, 481))),
        ("jpeg with fillers", jpeg(&[vec![0xff; 3], app.clone()], 0xc0, 5, 6), Some((5, 6))),
        ("jpeg with a restart", jpeg(&[vec![0xff, 0xd0]], 0xc0, 5, 6), Some((5, 6))),
        ("jpeg with a table first", jpeg(&[segment(0xc4, &[0; 9])], 0xc0, 7, 8), Some((7, 8))),
        ("jpeg without a frame", [vec![0xff, 0xd8], segment(0xda, &[1])].concat(), None),
        ("jpeg of garbage", vec![0xff, 0xd8, 1, 2, 3, 4, 5, 6], None),
        ("jpeg whose segments never end", jpeg(&vec![segment(0xe1, &[]); MAX_SEGMENTS], 0xc0, 7, 8), None),
        ("a cut png", png(9, 9)[..20].to_vec(), None),
        ("no width", png(0, 9), None),
        ("webp of an unknown kind", webp(b"ALPH", &[0; 16]), None),
        ("lossy webp without its mark", webp(b"VP8 ", &[0; 16]), None),
        ("something else", b"BM1234567890".to_vec(), None),
    ];
    for (name, bytes, size) in table {
        assert_eq!(both(&bytes), [size; 2], "{name}");
    }
}

#[test]
fn only_base64_data_urls_have_a_size() {
    let data = base64(&png(3, 4));
    let long = "x".repeat(MAX_URL_HEAD);
    let table = [
        ("https://example.com/cat.png".to_owned(), None),
        ("data:image/png,%89PNG".to_owned(), None),
        ("data:".to_owned(), None),
        (String::new(), None),
        (format!("data:image/png;name={long};base64,{data}"), None),
        (format!("data:;base64,{data}"), Some((3, 4))),
        (format!("data:image/png;name=a;base64,{data}"), Some((3, 4))),
        // The other alphabet of RFC 4648.
        (data.replace('+', "-").replace('/', "_"), Some((3, 4))),
    ];
    for (text, size) in table {
        assert_eq!(of(&text), size, "{text}");
    }
}

#[test]
fn long_images_are_read_in_few_bytes() {
    let mut text = base64(&jpeg(&vec![segment(0xe2, &[0; 60_000]); 20], 0xc0, 10, 20));
    text.push_str(&"A".repeat(1 << 20));
    let mut read = 0;
    let size = size(|at| {
        read += 1;
        text.as_bytes().get(at).copied()
    });
    assert_eq!(size, Some((10, 20)));
    assert!(read < 400, "{read}");
}

proptest! {
    #[test]
    fn bytes_are_decoded_as_they_were_encoded(bytes in prop::collection::vec(any::<u8>(), 0..50)) {
        let text = base64(&bytes);
        let byte = |at| base64_byte(at, |at| text.as_bytes().get(at).copied());
        let decoded: Vec<u8> = (0..).map_while(byte).collect();
        prop_assert_eq!(decoded, bytes);
    }

    #[test]
    fn a_jpeg_has_the_size_of_its_frame(
        before in prop::collection::vec((0xe0u8..=0xef, 0usize..300), 0..9),
        width in 1u16..,
        height in 1u16..,
    ) {
        let before: Vec<_> = before.into_iter().map(|(marker, len)| segment(marker, &vec![7; len])).collect();
        let size = Some((u32::from(width), u32::from(height)));
        prop_assert_eq!(both(&jpeg(&before, 0xc1, width, height)), [size; 2]);
    }

    #[test]
    fn any_image_bytes_are_handled_without_panic(
        start in prop_oneof![
            Just(png(1, 1)), Just(gif(1, 1)), Just(webp(b"VP8X", &[])), Just(jpeg(&[], 0xc4, 1, 1)), Just(Vec::new()),
        ],
        rest in prop::collection::vec(any::<u8>(), 0..200),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = [start, rest].concat();
        both(&bytes[..cut.index(bytes.len() + 1)]);
        of(&String::from_utf8_lossy(&bytes));
    }
}
