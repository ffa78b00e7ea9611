//! Reads from an input what to do with it.

use bytes::Bytes;

/// An input in two parts: everything up to the first newline chooses, and the
/// rest is the data.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The first line, without its end.
    settings: &'a [u8],
    /// The rest, after the first line.
    pub data: &'a [u8],
}

/// Sizes of chunks that are read from the settings; they repeat.
const MAX_SIZES: usize = 32;

impl<'a> Input<'a> {
    /// Splits an input. One without a newline has no data.
    pub fn of(bytes: &'a [u8]) -> Self {
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        Self { settings: &bytes[..end], data: bytes.get(end + 1..).unwrap_or_default() }
    }

    /// The same settings for other data.
    pub fn with<'b>(&self, data: &'b [u8]) -> Input<'b>
    where
        'a: 'b,
    {
        Input { settings: self.settings, data }
    }

    /// A byte of the settings; 0 when there is none.
    pub fn setting(&self, at: usize) -> u8 {
        self.settings.get(at).copied().unwrap_or(0)
    }

    /// The data in chunks: whole, byte by byte, and in the sizes that the settings
    /// name from `from` on. All are slices of one buffer, as they are of a frame.
    pub fn splits(&self, from: usize) -> [Vec<Bytes>; 3] {
        let data = Bytes::copy_from_slice(self.data);
        let bytes = (0..data.len()).map(|at| data.slice(at..=at)).collect();
        let sizes = self.settings.get(from..).unwrap_or_default();
        let cut = cut(data.clone(), &sizes[..sizes.len().min(MAX_SIZES)]);
        [vec![data], bytes, cut]
    }
}

/// Cuts data into chunks: `1` stands for one byte, `2` for two, `a` for 49 and so
/// on; `0` is an empty chunk. What is not an ASCII character behind `0` stands for a
/// chunk of more than a thousand bytes: a body keeps those where they are.
fn cut(mut data: Bytes, sizes: &[u8]) -> Vec<Bytes> {
    let size = |letter: &u8| match usize::from(letter.wrapping_sub(b'0')) {
        small @ 0..80 => small,
        large => large * 16,
    };
    let sizes: Vec<usize> = sizes.iter().map(size).collect();
    let mut chunks = Vec::new();
    if sizes.iter().any(|size| *size > 0) {
        for size in sizes.iter().cycle() {
            if data.is_empty() {
                break;
            }
            chunks.push(data.split_to((*size).min(data.len())));
        }
    }
    chunks.push(data);
    chunks
}
