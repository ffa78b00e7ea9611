//! Generated tokens of an event stream that doesn't say how many there are.

/// Bytes of text for a token.
const BYTES_PER_TOKEN: u64 = 4;

/// Framing of the first event from which on it says nothing about the others: it may hold the ids of
/// a prompt.
const MOST_FRAMING: usize = 512;

/// Counts the events of a stream from the first with generated content on. Engines send one for each
/// token. Where they put several into one, the bytes that aren't framing tell.
#[derive(Clone, Copy, Debug)]
pub struct Generated {
    /// Bytes of an event besides its content.
    framing: u64,
    /// Chunks below this length have one event.
    several: usize,
    events: u64,
    bytes: u64,
}

impl Generated {
    /// For a stream whose events have so many bytes besides their content.
    pub(super) fn new(framing: usize) -> Self {
        let several = if framing < MOST_FRAMING { 2 * framing } else { 0 };
        Self { framing: framing as u64, several, events: 0, bytes: 0 }
    }

    /// Counts the next chunk. One that is short isn't read: it has an event if it has the end of a
    /// line.
    #[inline]
    pub fn feed(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        self.events += if chunk.len() < self.several {
            u64::from(chunk.last() == Some(&b'\n'))
        } else {
            memchr::memmem::find_iter(chunk, b"data:").count() as u64
        };
    }

    /// Generated tokens so far.
    pub fn tokens(&self) -> u64 {
        let content = self.bytes.saturating_sub(self.events.saturating_mul(self.framing));
        self.events.max(content / BYTES_PER_TOKEN)
    }
}
