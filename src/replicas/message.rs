//! Messages in which replicas publish their load. No I/O.
//!
//! A message is the whole state of one replica, so that a lost one costs nothing once the next is there:
//!
//! | bytes | content |
//! |--:|---|
//! | 1 | version, 1 |
//! | 1 | flags; bit 0: the replica asks the others for their state; bit 1: the last list is there |
//! | 16 | origin, random at each start of a replica |
//! | 8 | sequence number, rising |
//! | 1 + n | name of the replica |
//! | 1, each 1 + n | counters, by the name of the producer; an empty name is all requests of the replica |
//! | 4, each 16 + 8 per counter | endpoint, a hash of its address and identity; requests and tokens |
//! | 4, each 16 | endpoints that get no new requests, as this replica is about to remove them |
//! | 4, each 8 | priority at which requests wait, the highest first; their number |
//! | 4, each 16 | priority and flow, a hash of its name; tokens that it got lately |
//!
//! Numbers are little-endian; each list has its length in front. Endpoints to which nothing was sent lately, and that have
//! nothing in flight, are left out: one that is there with zeros got requests that have ended.
//! Without the last list, what the replica said of flows before holds on: it is long, and sent more rarely.

use std::net::SocketAddr;

use usher_core::endpoints::InFlightId;
use xxhash_rust::xxh3::xxh3_128;

use super::queue::{FlowService, QueueState};

/// Version of the format above, that of release 0.1.0. Raised with every change of it since, as readers know a message by
/// its version alone: replicas of either side of an update reject and count each other's, and know their own load meanwhile.
const VERSION: u8 = 1;
const ASKS: u8 = 1;
const HAS_SERVICE: u8 = 2;

/// Most counters of a message: those of all producers, and the requests of the replica.
pub(super) const COUNTERS: usize = InFlightId::MAX + 1;

/// Most endpoints of a message.
pub(super) const MOST_ENDPOINTS: usize = 4096;

/// Most priorities of a message.
pub(super) const MOST_BANDS: usize = 256;

/// Most flows of a message, of all priorities together.
pub(super) const MOST_FLOWS: usize = 4096;

/// Bytes of a replica's name at most.
const MOST_NAME: usize = 63;

/// A process, until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Origin(pub(super) u128);

/// An endpoint as all replicas name it: a pod that comes back under its name or address is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EndpointKey(pub(super) u128);

impl EndpointKey {
    /// Key of an endpoint with this identity at this address.
    pub(super) fn new(identity: &str, address: SocketAddr) -> Self {
        Self(xxh3_128(format!("{identity}\0{address}").as_bytes()))
    }
}

/// Requests and tokens in flight. More than fits counts as the most that fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) requests: u32,
    pub(super) tokens: u32,
}

impl Count {
    pub(super) fn new(requests: u64, tokens: u64) -> Self {
        let most = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Self { requests: most(requests), tokens: most(tokens) }
    }
}

/// Counts of an endpoint, by the position of the counter in the message.
pub(super) type Counts = [Count; COUNTERS];

/// State of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) origin: Origin,
    pub(super) sequence: u64,
    /// The others are to send their state soon.
    pub(super) asks: bool,
    pub(super) name: String,
    /// Names of the counters, [`COUNTERS`] at most.
    pub(super) counters: Vec<String>,
    pub(super) endpoints: Vec<(EndpointKey, Counts)>,
    /// Endpoints that get no new requests.
    pub(super) draining: Vec<EndpointKey>,
    /// Requests that wait there.
    pub(super) queue: QueueState,
    /// Tokens that flows got there, of the highest priority first; `None`: as it was said before.
    pub(super) service: Option<Vec<FlowService>>,
}

/// Reason to refuse bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    /// Another version.
    Version,
    /// Shorter or longer than it says, or with more than a message has.
    Length,
}

/// A name as messages and metrics have it.
pub(super) fn short_name(name: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_graphic();
    name.chars().filter(is_plain).take(MOST_NAME).collect()
}

impl Message {
    /// The bytes of the message. Endpoints beyond [`MOST_ENDPOINTS`] are left out, of each list, and the lowest
    /// priorities beyond [`MOST_BANDS`] and [`MOST_FLOWS`].
    pub(super) fn encode(&self) -> Vec<u8> {
        let endpoints = self.endpoints.get(..MOST_ENDPOINTS).unwrap_or(&self.endpoints);
        let counters = self.counters.get(..COUNTERS).unwrap_or(&self.counters);
        let mut bytes = Vec::with_capacity(64 + endpoints.len() * (16 + 8 * counters.len()));
        let asks = if self.asks { ASKS } else { 0 };
        let has_service = if self.service.is_some() { HAS_SERVICE } else { 0 };
        bytes.extend([VERSION, asks | has_service]);
        bytes.extend(self.origin.0.to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        put_text(&self.name, &mut bytes);
        bytes.push(u8::try_from(counters.len()).unwrap_or(u8::MAX));
        counters.iter().for_each(|name| put_text(name, &mut bytes));
        bytes.extend(u32::try_from(endpoints.len()).unwrap_or_default().to_le_bytes());
        for (endpoint, counts) in endpoints {
            bytes.extend(endpoint.0.to_le_bytes());
            for count in counts.iter().take(counters.len()) {
                bytes.extend(count.requests.to_le_bytes());
                bytes.extend(count.tokens.to_le_bytes());
            }
        }
        let draining = self.draining.get(..MOST_ENDPOINTS).unwrap_or(&self.draining);
        bytes.extend(u32::try_from(draining.len()).unwrap_or_default().to_le_bytes());
        draining.iter().for_each(|endpoint| bytes.extend(endpoint.0.to_le_bytes()));
        let waiting = self.queue.waiting.get(..MOST_BANDS).unwrap_or(&self.queue.waiting);
        bytes.extend(u32::try_from(waiting.len()).unwrap_or_default().to_le_bytes());
        for (priority, requests) in waiting {
            bytes.extend(priority.to_le_bytes());
            bytes.extend(requests.to_le_bytes());
        }
        if let Some(service) = &self.service {
            let service = service.get(..MOST_FLOWS).unwrap_or(service);
            bytes.extend(u32::try_from(service.len()).unwrap_or_default().to_le_bytes());
            for FlowService { priority, flow, tokens } in service {
                bytes.extend(priority.to_le_bytes());
                bytes.extend(flow.to_le_bytes());
                bytes.extend(tokens.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads a message.
    ///
    /// # Errors
    /// `Malformed` if the bytes are no message of this version.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.byte()? != VERSION {
            return Err(Malformed::Version);
        }
        let flags = reader.byte()?;
        let origin = Origin(u128::from_le_bytes(reader.take()?));
        let sequence = u64::from_le_bytes(reader.take()?);
        let name = short_name(&reader.text()?);
        let count = usize::from(reader.byte()?);
        if count > COUNTERS {
            return Err(Malformed::Length);
        }
        let counters = (0..count).map(|_| reader.text()).collect::<Result<Vec<_>, _>>()?;
        let mut endpoints = Vec::new();
        for _ in 0..reader.rows(MOST_ENDPOINTS, 16 + 8 * count, &mut endpoints)? {
            let endpoint = EndpointKey(u128::from_le_bytes(reader.take()?));
            let mut counts = Counts::default();
            for into in counts.iter_mut().take(count) {
                *into = Count { requests: reader.u32()?, tokens: reader.u32()? };
            }
            endpoints.push((endpoint, counts));
        }
        let mut draining = Vec::new();
        for _ in 0..reader.rows(MOST_ENDPOINTS, 16, &mut draining)? {
            draining.push(EndpointKey(u128::from_le_bytes(reader.take()?)));
        }
        let mut waiting = Vec::new();
        for _ in 0..reader.rows(MOST_BANDS, 8, &mut waiting)? {
            waiting.push((i32::from_le_bytes(reader.take()?), reader.u32()?));
        }
        let mut service = (flags & HAS_SERVICE != 0).then(Vec::new);
        if let Some(service) = &mut service {
            for _ in 0..reader.rows(MOST_FLOWS, 16, service)? {
                let priority = i32::from_le_bytes(reader.take()?);
                let flow = u64::from_le_bytes(reader.take()?);
                service.push(FlowService { priority, flow, tokens: reader.u32()? });
            }
        }
        if !reader.0.is_empty() {
            return Err(Malformed::Length);
        }
        let (asks, queue) = (flags & ASKS != 0, QueueState { waiting });
        Ok(Self { origin, sequence, asks, name, counters, endpoints, draining, queue, service })
    }
}

fn put_text(text: &str, bytes: &mut Vec<u8>) {
    // Names of plugins are shorter; a longer one is cut at all replicas alike.
    let end = (0..=text.len().min(usize::from(u8::MAX))).rev().find(|end| text.is_char_boundary(*end));
    let text = text.get(..end.unwrap_or_default()).unwrap_or_default();
    bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    bytes.extend(text.as_bytes());
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    /// Number of the rows of so many bytes that follow. Memory is taken only for what is there.
    fn rows<T>(&mut self, most: usize, bytes: usize, into: &mut Vec<T>) -> Result<usize, Malformed> {
        let rows = usize::try_from(self.u32()?).map_err(|_| Malformed::Length)?;
        if rows > most || rows * bytes > self.0.len() {
            return Err(Malformed::Length);
        }
        into.reserve_exact(rows);
        Ok(rows)
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let length = usize::from(self.byte()?);
        let (text, rest) = self.0.split_at_checked(length).ok_or(Malformed::Length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| Malformed::Length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(rows: usize) -> Message {
        let counts = |row: usize| {
            let mut counts = Counts::default();
            counts[0] = Count::new(row as u64 + 1, 0);
            counts[1] = Count::new(row as u64, 1000);
            counts
        };
        Message {
            origin: Origin(7),
            sequence: 9,
            asks: true,
            name: "epp-0".to_owned(),
            counters: vec![String::new(), "inflight-load-producer".to_owned()],
            endpoints: (0..rows).map(|row| (EndpointKey(row as u128), counts(row))).collect(),
            draining: Vec::new(),
            queue: QueueState::default(),
            service: None,
        }
    }

    fn flow(flow: u64) -> FlowService {
        FlowService { priority: -3, flow, tokens: 70_000 }
    }

    #[test]
    fn message_is_read_as_it_was_written() {
        for rows in [0, 1, MOST_ENDPOINTS] {
            assert_eq!(Message::decode(&message(rows).encode()), Ok(message(rows)));
        }
        // The guide says how large messages are.
        assert_eq!(message(1).encode().len() - message(0).encode().len(), 32);
        assert_eq!(message(0).encode().len(), 69);
        assert!(message(MOST_ENDPOINTS).encode().len() < super::super::resp::MOST_TEXT);
    }

    #[test]
    fn other_lists_are_read_as_they_were_written() {
        for (rows, service) in [(0, None), (3, Some(Vec::new())), (3, Some(vec![flow(1), flow(u64::MAX)]))] {
            let mut sent = Message { service, ..message(rows) };
            sent.draining = vec![EndpointKey(8), EndpointKey(9)];
            sent.queue.waiting = vec![(i32::MAX, 1), (0, u32::MAX), (i32::MIN, 7)];
            assert_eq!(Message::decode(&sent.encode()), Ok(sent.clone()));
            let bytes = sent.encode();
            assert_eq!(Message::decode(&bytes[..bytes.len() - 1]), Err(Malformed::Length));
        }
    }

    #[test]
    fn format_of_version_1_stays() {
        let sent = Message {
            origin: Origin(0x0102),
            sequence: 0x0304,
            asks: true,
            name: "a".to_owned(),
            counters: vec![String::new(), "b".to_owned()],
            endpoints: vec![(EndpointKey(5), message(1).endpoints[0].1)],
            draining: vec![EndpointKey(6)],
            queue: QueueState { waiting: vec![(-1, 8)] },
            service: Some(vec![FlowService { priority: -2, flow: 9, tokens: 10 }]),
        };
        let expected = "\
            01 03 02010000000000000000000000000000 0403000000000000 0161 02 00 0162 \
            01000000 05000000000000000000000000000000 01000000 00000000 00000000 e8030000 \
            01000000 06000000000000000000000000000000 01000000 ffffffff 08000000 \
            01000000 feffffff 0900000000000000 0a000000";
        let bytes: String = sent.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(bytes, expected.replace(' ', ""), "another format is another version");
    }

    #[test]
    fn rows_beyond_the_bounds_are_left_out() {
        let mut sent = message(MOST_ENDPOINTS + 5);
        sent.draining = vec![EndpointKey(1); MOST_ENDPOINTS + 5];
        sent.queue.waiting = (0..300).map(|priority| (-priority, 1)).collect();
        sent.service = Some((0..5000).map(flow).collect());
        let read = Message::decode(&sent.encode()).unwrap();
        assert_eq!(read.service.unwrap().len(), MOST_FLOWS);
        assert_eq!((read.endpoints.len(), read.draining.len()), (MOST_ENDPOINTS, MOST_ENDPOINTS));
        assert_eq!(read.queue.waiting, sent.queue.waiting[..MOST_BANDS]);
    }

    #[test]
    fn malformed_messages_are_refused() {
        let bytes = message(3).encode();
        for length in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..length]), Err(Malformed::Length), "{length}");
        }
        assert_eq!(Message::decode(&[bytes.clone(), vec![0]].concat()), Err(Malformed::Length));
        for version in [0, 2] {
            let other = [&[version], &bytes[1..], &[0; 9]].concat();
            assert_eq!(Message::decode(&other), Err(Malformed::Version), "whatever follows");
        }
        let mut too_many = message(0).encode();
        let draining = too_many.len() - 8;
        too_many.truncate(draining + 4);
        too_many[draining..].copy_from_slice(&(MOST_ENDPOINTS as u32 + 1).to_le_bytes());
        too_many.extend(vec![0; 16 * (MOST_ENDPOINTS + 1) + 4]);
        assert_eq!(Message::decode(&too_many), Err(Malformed::Length));
    }

    #[test]
    fn lists_say_how_long_they_are() {
        // An endpoint with requests, and as many bytes of one that is about to go, are not taken for each other.
        let mut sent = message(2);
        sent.draining = vec![EndpointKey(3); 2];
        let bytes = sent.encode();
        let rows = message(0).encode().len() - 12;
        assert_eq!(bytes[rows..rows + 4], 2u32.to_le_bytes());
        let draining = rows + 4 + 2 * 32;
        assert_eq!(bytes[draining..draining + 4], 2u32.to_le_bytes());
        let mut fewer = bytes.clone();
        fewer[draining] = 1;
        assert_eq!(Message::decode(&fewer), Err(Malformed::Length));
    }

    #[test]
    fn pod_of_the_same_name_or_address_is_another_endpoint() {
        let [a, b] = ["10.0.0.1:8000", "10.0.0.2:8000"].map(|address| address.parse().unwrap());
        let key = EndpointKey::new("default/pod@u1", a);
        assert_eq!(key, EndpointKey::new("default/pod@u1", a));
        assert_ne!(key, EndpointKey::new("default/pod@u2", a));
        assert_ne!(key, EndpointKey::new("default/pod@u1", b));
        // Replicas of another build have to find the same.
        assert_eq!(key.0, xxh3_128(b"default/pod@u1\x0010.0.0.1:8000"));
    }

    #[test]
    fn names_are_short_and_plain() {
        assert_eq!(short_name("epp-\n\"ä0"), "epp-\"0");
        assert_eq!(short_name(&"x".repeat(100)).len(), MOST_NAME);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Message::decode(&bytes);
            if let Some(version) = bytes.first_mut() {
                *version = VERSION;
            }
            if let Ok(read) = Message::decode(&bytes) {
                prop_assert_eq!(Message::decode(&read.encode()), Ok(read));
            }
        }

        #[test]
        fn damaged_messages_are_read_or_refused(at in 0usize..150, to in any::<u8>()) {
            let mut bytes = message(2).encode();
            let at = at % bytes.len();
            bytes[at] = to;
            let _ = Message::decode(&bytes);
        }
    }
}
