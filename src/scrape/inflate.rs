//! Pages that come compressed with gzip.

use std::io::{self, Write};

use flate2::write::MultiGzDecoder;

/// Bytes that are inflated before the result is handed on. Deflate makes at most a thousand
/// bytes of one, so this bounds what a small response can occupy.
const STEP_BYTES: usize = 1 << 10;

/// Error of a page that can't be inflated.
#[derive(Debug, thiserror::Error)]
pub enum InflateError {
    /// Larger than allowed.
    #[error("it is larger than allowed")]
    TooLarge,
    /// Not gzip, or not whole.
    #[error("it is not gzip, or damaged: {0}")]
    Damaged(#[source] io::Error),
}

/// Inflates what arrives piece by piece.
#[derive(Debug)]
pub struct Inflater {
    decoder: MultiGzDecoder<Plain>,
}

/// Inflated bytes that were not passed on yet.
#[derive(Debug)]
struct Plain {
    bytes: Vec<u8>,
    /// Bytes that are still allowed; `None` once there were more.
    left: Option<usize>,
}

impl Write for Plain {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.and_then(|left| left.checked_sub(bytes.len()));
        if self.left.is_none() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Inflater {
    /// Inflates to `limit` bytes at most.
    pub fn new(limit: usize) -> Self {
        Self { decoder: MultiGzDecoder::new(Plain { bytes: Vec::new(), left: Some(limit) }) }
    }

    /// Inflates the next piece.
    ///
    /// # Errors
    /// `InflateError` if the output is too large, or the input is no gzip.
    pub fn feed(&mut self, bytes: &[u8], piece: &mut impl FnMut(&[u8])) -> Result<(), InflateError> {
        for step in bytes.chunks(STEP_BYTES) {
            let written = self.decoder.write_all(step);
            self.hand_on(written, piece)?;
        }
        Ok(())
    }

    /// Ends the page.
    ///
    /// # Errors
    /// `InflateError` if the input is truncated, or its checksum is wrong.
    pub fn finish(&mut self, piece: &mut impl FnMut(&[u8])) -> Result<(), InflateError> {
        let ended = self.decoder.try_finish();
        self.hand_on(ended, piece)
    }

    fn hand_on(&mut self, result: io::Result<()>, piece: &mut impl FnMut(&[u8])) -> Result<(), InflateError> {
        let plain = self.decoder.get_mut();
        if plain.left.is_none() {
            return Err(InflateError::TooLarge);
        }
        result.map_err(InflateError::Damaged)?;
        if !plain.bytes.is_empty() {
            piece(&plain.bytes);
            plain.bytes.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn inflate(limit: usize, pieces: &[&[u8]]) -> Result<Vec<u8>, InflateError> {
        let mut out = Vec::new();
        let mut inflater = Inflater::new(limit);
        let mut take = |piece: &[u8]| out.extend_from_slice(piece);
        for piece in pieces {
            inflater.feed(piece, &mut take)?;
        }
        inflater.finish(&mut take)?;
        Ok(out)
    }

    #[test]
    fn every_split_inflates_to_the_same() {
        let text = b"vllm:num_requests_waiting 3\n".repeat(50);
        let packed = gzip(&text);
        for at in 0..=packed.len() {
            let (start, end) = packed.split_at(at);
            assert_eq!(inflate(text.len(), &[start, end]).unwrap(), text, "{at}");
        }
        let two = [packed.clone(), gzip(b"b 1\n")].concat();
        assert_eq!(inflate(usize::MAX, &[&two]).unwrap(), [text.as_slice(), b"b 1\n"].concat());
    }

    #[test]
    fn decompression_bomb_is_stopped_with_bounded_memory() {
        let packed = gzip(&vec![b'#'; 30 << 20]);
        let mut most = 0;
        let mut inflater = Inflater::new(4 << 20);
        let error = inflater.feed(&packed, &mut |piece| most = most.max(piece.len())).unwrap_err();
        assert!(matches!(error, InflateError::TooLarge), "{error}");
        assert!(most < 2 << 20, "{most}");
    }

    #[test]
    fn damaged_or_truncated_gzip_is_refused() {
        let packed = gzip(b"a 1\n");
        for cut in 1..packed.len() {
            assert!(inflate(99, &[&packed[..cut]]).is_err(), "{cut}");
        }
        let mut wrong = packed.clone();
        wrong[packed.len() - 6] ^= 1;
        for bad in [wrong, b"vllm:num_requests_waiting 3\n".to_vec(), [packed, b"more".to_vec()].concat()] {
            assert!(inflate(99, &[&bad]).is_err());
        }
    }
}
