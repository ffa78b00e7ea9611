//! Heads of HTTP/2 frames, as bytes of them arrive.

use std::collections::{HashSet, VecDeque};

/// Bytes of a frame's head: length, type, flags and stream (RFC 9113, section 4.1).
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;

/// Memory that an unread DATA frame takes besides its payload, in bytes: an entry of h2's queue,
/// and its share of a read buffer.
pub const OVERHEAD: i64 = 256;

/// Charge of HTTP/2 for an unread frame that takes so many bytes, [`OVERHEAD`] included; 0 for an empty or large one.
pub fn charge(taken: i64) -> i64 {
    let charge = 2 * OVERHEAD - taken;
    if (1..OVERHEAD).contains(&charge) { charge } else { 0 }
}

/// Finds frames in the bytes of one direction of a connection, which may be cut anywhere.
#[derive(Debug)]
struct Heads {
    /// Bytes of the payload, or of the preface, that are still to come.
    skip: usize,
    /// The beginning of a head whose rest is still to come.
    head: [u8; HEAD],
    have: usize,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Heads {
    fn after(preface: usize) -> Self {
        Self { skip: preface, head: [0; HEAD], have: 0 }
    }

    /// Leaves of `bytes` those after the payload that is still to come.
    #[inline]
    fn skip(&mut self, bytes: &mut &[u8]) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        *bytes = &bytes[skipped..];
    }

    /// The next frame whose head ends within `bytes`, which are then those of its payload and after.
    #[inline]
    fn next(&mut self, bytes: &mut &[u8]) -> Option<Head> {
        self.skip(bytes);
        if bytes.is_empty() {
            return None;
        }
        let head = if self.have == 0
            && let Some((head, rest)) = bytes.split_first_chunk::<HEAD>()
        {
            *bytes = rest;
            *head
        } else {
            let (part, rest) = bytes.split_at(bytes.len().min(HEAD - self.have));
            self.head[self.have..self.have + part.len()].copy_from_slice(part);
            self.have += part.len();
            *bytes = rest;
            if self.have < HEAD {
                return None;
            }
            self.have = 0;
            self.head
        };
        let [high, middle, low, kind, flags, stream @ ..] = head;
        self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        Some(Head { length: self.skip, kind, flags, stream: u32::from_be_bytes(stream) & (u32::MAX >> 1) })
    }
}

/// Counts the frames that a client sends.
#[derive(Debug)]
pub struct Received {
    heads: Heads,
    /// A padded DATA frame whose first byte, the length of its padding, is the next.
    padded: Option<Data>,
    /// The last frame is one of headers, and whether none of those follows it.
    headers: Option<bool>,
}

/// Result of a [read](Received::read).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Bytes that were read: all, or those up to the end of the last frame.
    pub bytes: usize,
    /// Frames of any kind whose heads end within those.
    pub frames: usize,
    /// Memory that the DATA frames among those take.
    pub data: i64,
}

/// Message of a client on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Headers: those that begin the stream, or trailers.
    Headers,
    /// A frame of data, or the length of the last one's padding: what that changes.
    Data {
        /// Bytes that it takes more; below zero for padding.
        taken: i64,
        /// [Charge](charge) of HTTP/2 more.
        charge: i64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Data {
    stream: u32,
    length: i64,
    is_last: bool,
}

impl Data {
    /// Memory that it takes until it is read. h2 drops empty frames unless they end the stream.
    fn taken(self) -> i64 {
        if self.length > 0 || self.is_last { self.length + OVERHEAD } else { 0 }
    }
}

impl Received {
    /// For a connection whose first so many bytes are the preface.
    pub fn after(preface: usize) -> Self {
        Self { heads: Heads::after(preface), padded: None, headers: None }
    }

    /// Bytes of the frame that has begun which are still to come.
    pub fn ahead(&self) -> usize {
        self.heads.skip
    }

    /// Returns `true` if the rest of some headers is still to come.
    pub fn is_within_headers(&self) -> bool {
        self.headers.is_some_and(|are_last| !are_last || self.heads.skip > 0)
    }

    /// Reads `all` up to the end of the last of `most` frames, a number above 0. DATA frames take
    /// their payload, and [`OVERHEAD`] each. The padding of a frame is taken off when its length is read.
    /// Frames on streams that were `reset` take none. `on_arrival` is called with what came on which stream.
    pub fn read(
        &mut self,
        all: &[u8],
        most: usize,
        reset: &ResetStreams,
        mut on_arrival: impl FnMut(u32, Arrival),
    ) -> Arrived {
        let (mut bytes, mut frames, mut sum) = (all, 0, 0);
        loop {
            if let (Some(data), Some(padding)) = (self.padded, bytes.first()) {
                let length = (data.length - 1 - i64::from(*padding)).max(0);
                let (before, now) = (data.taken(), Data { length, ..data }.taken());
                let (taken, charge) = (now - before, charge(now) - charge(before));
                sum += taken;
                on_arrival(data.stream, Arrival::Data { taken, charge });
                self.padded = None;
            }
            if frames == most {
                self.heads.skip(&mut bytes);
                return Arrived { bytes: all.len() - bytes.len(), frames, data: sum };
            }
            let Some(head) = self.heads.next(&mut bytes) else {
                return Arrived { bytes: all.len(), frames, data: sum };
            };
            frames += 1;
            let Head { length, kind, flags, stream } = head;
            let are_headers = matches!(kind, HEADERS | CONTINUATION);
            self.headers = are_headers.then_some(flags & END_HEADERS != 0);
            if kind == HEADERS {
                on_arrival(stream, Arrival::Headers);
            } else if kind == DATA && !reset.has(stream) {
                let data = Data { stream, length: length as i64, is_last: flags & END_STREAM != 0 };
                let taken = data.taken();
                sum += taken;
                on_arrival(stream, Arrival::Data { taken, charge: charge(taken) });
                self.padded = (flags & PADDED != 0 && length > 0).then_some(data);
            }
        }
    }
}

/// Streams whose resets are remembered: 14 KiB, of what a connection counts that has had a stream. More
/// may be reset at a time, but few send for long after.
const MAX_RESET: usize = 1024;

/// Streams that we have reset lately. What a client still sends there is dropped.
#[derive(Debug)]
pub struct ResetStreams {
    heads: Heads,
    streams: HashSet<u32>,
    order: VecDeque<u32>,
}

impl ResetStreams {
    /// None yet.
    pub fn new() -> Self {
        Self { heads: Heads::after(0), streams: HashSet::new(), order: VecDeque::new() }
    }

    /// Notes that bytes were sent. Returns the number of frames whose heads end within them.
    pub fn sent(&mut self, mut bytes: &[u8]) -> usize {
        let mut frames = 0;
        while let Some(head) = self.heads.next(&mut bytes) {
            frames += 1;
            if head.kind == RST_STREAM && self.streams.insert(head.stream) {
                self.order.push_back(head.stream);
                if self.order.len() > MAX_RESET
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.streams.remove(&oldest);
                }
            }
        }
        frames
    }

    fn has(&self, stream: u32) -> bool {
        !self.streams.is_empty() && self.streams.contains(&stream)
    }
}

impl Default for ResetStreams {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As many frames as there are.
    const ALL: usize = usize::MAX;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn only_data_counts_and_padding_does_not() {
        // Type, flags, payload; bytes that it takes.
        let table: [(u8, u8, &[u8], i64); 9] = [
            (DATA, 0, b"x", 257),
            (DATA, END_STREAM, b"abc", 259),
            (DATA, 0, b"", 0),
            (DATA, END_STREAM, b"", 256),
            (DATA, PADDED, &[3, b'a', 0, 0, 0], 257),
            (DATA, PADDED, &[2, 0, 0], 0),
            (DATA, PADDED | END_STREAM, &[2, 0, 0], 256),
            (DATA, PADDED, &[200, 0, 0], 0),
            (HEADERS, 0, b"anything", 0),
        ];
        for (kind, flags, payload, taken) in table {
            let mut arrived = 0;
            let read = Received::after(0).read(
                &frame(kind, flags, payload),
                ALL,
                &ResetStreams::new(),
                |stream, what| {
                    assert_eq!((stream, matches!(what, Arrival::Headers)), (1, kind == HEADERS));
                    arrived += if let Arrival::Data { taken, .. } = what { taken } else { 0 };
                },
            );
            assert_eq!((read.data, arrived), (taken, taken), "{flags} {payload:?}");
        }
    }

    #[test]
    fn data_on_reset_streams_does_not_count() {
        let mut reset = ResetStreams::new();
        let sent = [frame(DATA, 0, &[RST_STREAM; 30]), frame(RST_STREAM, 0, &[0; 4])].concat();
        assert_eq!(sent.chunks(4).map(|part| reset.sent(part)).sum::<usize>(), 2);
        let mut late = frame(DATA, 0, b"x");
        assert_eq!(Received::after(0).read(&late, ALL, &reset, |_, _| {}).data, 0);
        late[8] = 3;
        assert_eq!(Received::after(0).read(&late, ALL, &reset, |_, _| {}).data, 257, "another stream");
        (0..MAX_RESET as u32).for_each(|stream| {
            let mut bytes = frame(RST_STREAM, 0, &[0; 4]);
            bytes[5..9].copy_from_slice(&(2 * stream + 5).to_be_bytes());
            reset.sent(&bytes);
        });
        assert!(!reset.has(1) && reset.has(5) && reset.order.len() == MAX_RESET);
    }

    #[test]
    fn headers_end_with_their_last_frame() {
        // Frames, bytes that are left out at the end; whether headers are still to come.
        let table = [
            (vec![(HEADERS, END_HEADERS)], 0, false),
            (vec![(HEADERS, END_HEADERS)], 1, true),
            (vec![(HEADERS, 0)], 0, true),
            (vec![(HEADERS, 0), (CONTINUATION, 0)], 0, true),
            (vec![(HEADERS, 0), (CONTINUATION, END_HEADERS)], 0, false),
            (vec![(HEADERS, END_HEADERS), (DATA, 0)], 2, false),
        ];
        for (frames, missing, within) in table {
            let mut received = Received::after(0);
            let wire: Vec<u8> =
                frames.iter().flat_map(|(kind, flags)| frame(*kind, *flags, b"abc")).collect();
            received.read(&wire[..wire.len() - missing], ALL, &ResetStreams::new(), |_, _| {});
            assert_eq!(received.is_within_headers(), within, "{frames:?}");
        }
    }

    proptest! {
        #[test]
        fn frames_are_found_at_any_split(
            frames in prop::collection::vec((0u8..12, any::<u8>(), 0usize..300), 0..20),
            cuts in prop::collection::vec(1usize..40, 1..9),
            most in 1usize..4,
        ) {
            let mut wire = vec![b'p'; 24];
            let (count, mut want, mut charged) = (frames.len(), 0, 0);
            for (kind, flags, length) in frames {
                let payload = vec![1; length];
                wire.extend(frame(kind, flags, &payload));
                if kind == DATA {
                    let padding = if flags & PADDED != 0 { length.min(2) } else { 0 };
                    let is_last = flags & END_STREAM != 0;
                    let taken = Data { stream: 1, length: (length - padding) as i64, is_last }.taken();
                    want += taken;
                    charged += charge(taken);
                }
            }
            let (mut received, mut got, mut rest) = (Received::after(24), (0, 0), &wire[..]);
            for cut in cuts.iter().cycle() {
                let now = &rest[..rest.len().min(*cut)];
                let arrived = received.read(now, most, &ResetStreams::new(), |_, what| {
                    charged -= if let Arrival::Data { charge, .. } = what { charge } else { 0 };
                });
                prop_assert!(arrived.bytes == now.len() || (arrived.frames == most && received.ahead() == 0));
                got = (got.0 + arrived.frames, got.1 + arrived.data);
                rest = &rest[arrived.bytes..];
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!((got, charged), ((count, want), 0));
        }

        #[test]
        fn random_bytes_end_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            Received::after(3).read(&bytes, ALL, &ResetStreams::new(), |_, _| {});
            ResetStreams::new().sent(&bytes);
        }
    }
}
