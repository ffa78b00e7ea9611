//! Records of learned state as bytes: numbers, little-endian, texts, and endpoints.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use usher_core::endpoints::{Endpoint, Snapshot};
use usher_plugin::MalformedRecord;

/// Bytes of a text at most. Names of pods and values of labels are shorter.
const MOST_TEXT: usize = 1024;

/// Difference in the start of an engine, in seconds, that makes it another process. Some engines compute it anew each time.
const RESTART: f64 = 5.0;

/// Bytes of a record that is written.
#[derive(Debug, Default)]
pub(crate) struct RecordWriter(pub(crate) Vec<u8>);

impl RecordWriter {
    pub(crate) fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    pub(crate) fn u16(&mut self, number: u16) {
        self.0.extend(number.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    pub(crate) fn i64(&mut self, number: i64) {
        self.0.extend(number.to_le_bytes());
    }

    pub(crate) fn u128(&mut self, number: u128) {
        self.0.extend(number.to_le_bytes());
    }

    pub(crate) fn f64(&mut self, number: f64) {
        self.0.extend(number.to_le_bytes());
    }

    pub(crate) fn f64s(&mut self, numbers: &[f64]) {
        numbers.iter().for_each(|number| self.f64(*number));
    }

    /// A text; an empty one if it is longer than any is.
    pub(crate) fn text(&mut self, text: &str) {
        let text = if text.len() > MOST_TEXT { "" } else { text };
        // Fits, by the bound.
        self.u16(text.len() as u16);
        self.0.extend(text.as_bytes());
    }

    /// An endpoint, and when its engine started, in seconds of Unix time, if that is known.
    pub(crate) fn endpoint(&mut self, endpoint: &Endpoint, started: Option<f64>) {
        self.text(endpoint.identity());
        self.text(endpoint.authority());
        self.f64(started.unwrap_or_default());
    }
}

/// Bytes of a record that are yet to be read. They may be anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordReader<'a>(pub(crate) &'a [u8]);

impl<'a> RecordReader<'a> {
    pub(crate) fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], MalformedRecord> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(MalformedRecord)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, MalformedRecord> {
        self.take().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, MalformedRecord> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, MalformedRecord> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, MalformedRecord> {
        self.take().map(i64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Result<u128, MalformedRecord> {
        self.take().map(u128::from_le_bytes)
    }

    /// A number within these bounds.
    pub(crate) fn f64(&mut self, bounds: RangeInclusive<f64>) -> Result<f64, MalformedRecord> {
        let number = self.take().map(f64::from_le_bytes)?;
        bounds.contains(&number).then_some(number).ok_or(MalformedRecord)
    }

    /// Numbers within these bounds.
    pub(crate) fn f64s<const N: usize>(
        &mut self,
        bounds: &RangeInclusive<f64>,
    ) -> Result<[f64; N], MalformedRecord> {
        let mut numbers = [0.0; N];
        for number in &mut numbers {
            *number = self.f64(bounds.clone())?;
        }
        Ok(numbers)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, MalformedRecord> {
        let length = usize::from(self.u16()?);
        let (text, rest) =
            self.0.split_at_checked(length).filter(|_| length <= MOST_TEXT).ok_or(MalformedRecord)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| MalformedRecord)
    }

    /// An endpoint: the one in the snapshot, if it is the same pod at the same address.
    pub(crate) fn endpoint<'s>(
        &mut self,
        snapshot: &'s Snapshot,
    ) -> Result<NamedEndpoint<'s>, MalformedRecord> {
        let (identity, address) = (self.text()?, self.text()?);
        let started = self.f64(0.0..=f64::MAX)?;
        let address: Option<SocketAddr> = address.parse().ok();
        let found = address.and_then(|address| snapshot.at(address.ip(), address.port()));
        let endpoint = found.filter(|found| &**found.identity() == identity);
        Ok(NamedEndpoint { endpoint, started: Some(started).filter(|started| *started > 0.0) })
    }
}

/// An endpoint that a record names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedEndpoint<'a> {
    /// The endpoint; `None`: the pool has no such one.
    endpoint: Option<&'a Arc<Endpoint>>,
    /// When its engine started, in seconds of Unix time, if the writer knew.
    pub(crate) started: Option<f64>,
}

impl<'a> NamedEndpoint<'a> {
    /// The endpoint, unless its engine is known to have started anew since.
    pub(crate) fn same(&self) -> Option<&'a Arc<Endpoint>> {
        let is_same = |endpoint: &&Arc<Endpoint>| {
            let now = endpoint.load().engine_times.get().started;
            self.started.zip(now).is_none_or(|(then, now)| (now - then).abs() <= RESTART)
        };
        self.endpoint.filter(is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::endpoints::{EndpointSpec, EngineTimes, Store};

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut out = RecordWriter::default();
        out.u8(7);
        out.u16(700);
        out.u64(1 << 40);
        out.i64(-2);
        out.u128(1 << 100);
        out.f64s(&[0.5, -2.0]);
        out.text("née");
        out.text(&"x".repeat(MOST_TEXT + 1));
        let mut record = RecordReader(&out.0);
        assert_eq!((record.u8(), record.u16(), record.u64()), (Ok(7), Ok(700), Ok(1 << 40)));
        assert_eq!(record.i64(), Ok(-2));
        assert_eq!((record.u128(), record.f64s(&(-2.0..=1.0))), (Ok(1 << 100), Ok([0.5, -2.0])));
        assert_eq!((record.text(), record.text(), record.is_empty()), (Ok("née"), Ok(""), true));
        assert_eq!((record.u8(), record.text()), (Err(MalformedRecord), Err(MalformedRecord)));
    }

    #[test]
    fn numbers_out_of_bounds_are_malformed() {
        for number in [f64::NAN, f64::INFINITY, -1.0, 2.0] {
            assert_eq!(RecordReader(&number.to_le_bytes()).f64(0.0..=1.0), Err(MalformedRecord));
        }
        let texts: [&[u8]; 3] = [&[2, 0, b'a'], &[1, 0, 0xff], &[0xff, 0xff]];
        for text in texts {
            assert_eq!(RecordReader(text).text(), Err(MalformedRecord));
        }
    }

    #[test]
    fn endpoint_is_the_same_pod_address_and_engine() {
        let pod = |name: &str, uid: &str, ip: u8| EndpointSpec {
            uid: Some(uid.to_owned()),
            ..EndpointSpec::new(name, ([10, 0, 0, ip], 80))
        };
        let snapshot = |spec| {
            let store = Store::default();
            store.replace(vec![spec]);
            store.snapshot()
        };
        let written = snapshot(pod("a", "1", 1));
        let is_same = |spec, started: [Option<f64>; 2]| {
            let mut out = RecordWriter::default();
            out.endpoint(&written.endpoints()[0], started[0]);
            let read = snapshot(spec);
            let times = EngineTimes { started: started[1], ..EngineTimes::default() };
            read.endpoints()[0].load().engine_times.set(times);
            RecordReader(&out.0).endpoint(&read).unwrap().same().is_some()
        };
        for started in [[None, None], [Some(9.0), None], [None, Some(9.0)], [Some(9.0), Some(12.0)]] {
            assert!(is_same(pod("a", "1", 1), started), "{started:?}");
        }
        assert!(!is_same(pod("a", "1", 1), [Some(9.0), Some(15.0)]), "another process");
        for other in [pod("a", "2", 1), pod("a", "1", 2), pod("b", "1", 1)] {
            assert!(!is_same(other.clone(), [None, None]), "{other:?}");
        }
    }
}
