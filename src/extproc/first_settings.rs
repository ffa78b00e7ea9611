//! The SETTINGS frame that begins what a server sends (RFC 9113, section 3.4).
//!
//! hyper sends clients the limit of streams that it also enforces. Here they are told a lower one:
//! clients open streams before they hear of any, and those are not to be refused.

/// Bytes of a frame's head.
const HEAD: usize = 9;

/// Bytes of a setting: its number and its value.
const SETTING: usize = 6;

/// SETTINGS_MAX_CONCURRENT_STREAMS
const MAX_STREAMS: [u8; 2] = [0, 3];

/// The first frame, with another limit of streams.
#[derive(Debug)]
pub struct FirstSettings {
    /// Streams that the client is told it may open.
    streams: u32,
    /// The frame, of which so many bytes are sent.
    frame: Vec<u8>,
    sent: usize,
}

impl FirstSettings {
    /// One that tells the client of so many streams.
    pub fn new(streams: u32) -> Self {
        Self { streams, frame: Vec::new(), sent: 0 }
    }

    /// The bytes of the frame that are to be sent in place of the first of `bytes`.
    pub fn replace(&mut self, bytes: &[u8]) -> &[u8] {
        if self.frame.is_empty() {
            let length = match bytes {
                [0, high, low, ..] => HEAD + (usize::from(*high) << 8 | usize::from(*low)),
                _ => bytes.len(),
            };
            self.frame = bytes[..length.min(bytes.len())].to_vec();
            for setting in
                self.frame.get_mut(HEAD..).into_iter().flat_map(|all| all.chunks_exact_mut(SETTING))
            {
                if let Some((number, value)) = setting.split_at_mut_checked(MAX_STREAMS.len())
                    && number == MAX_STREAMS
                {
                    value.copy_from_slice(&self.streams.to_be_bytes());
                }
            }
        }
        let rest = &self.frame[self.sent..];
        &rest[..rest.len().min(bytes.len())]
    }

    /// Notes sent bytes. Returns `true` if they were the last.
    pub fn sent(&mut self, bytes: usize) -> bool {
        self.sent += bytes;
        self.sent >= self.frame.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_stream_limit_changes() {
        let settings = |streams: u32| {
            let streams = streams.to_be_bytes();
            let limit = [&MAX_STREAMS[..], &streams].concat();
            [&[0, 0, 18, 4, 0, 0, 0, 0, 0][..], &[0, 4, 0, 3, 0, 3], &limit, &[0, 5, 0, 1, 0, 0]].concat()
        };
        let sent = [settings(100_000), b"what follows".to_vec()].concat();
        let want = [settings(100), b"what follows".to_vec()].concat();
        for cut in 1..sent.len() {
            let (mut first, mut got) = (FirstSettings::new(100), Vec::new());
            loop {
                let part = first.replace(&sent[got.len()..]);
                let part = part[..part.len().min(cut)].to_vec();
                got.extend_from_slice(&part);
                if first.sent(part.len()) {
                    break;
                }
            }
            got.extend_from_slice(&sent[got.len()..]);
            assert_eq!(got, want, "{cut}");
        }
    }
}
