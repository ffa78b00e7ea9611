//! The model as replicas hand it on: the pool's means, the times of groups, what differs at single endpoints, and the lengths of
//! responses by model and flow.
//!
//! Backlogs, arrivals and the accuracy of predictions are of one replica alone. Of each part, the one counts that was learned
//! from more observations lately ([`Evidence`](super::evidence::Evidence)): estimates of several replicas are not averaged, as
//! each has seen the others' load, and so they hardly differ. A restarted engine keeps what its group has learned, as it does
//! here.

use std::sync::Arc;

use usher_core::endpoints::{Endpoint, Snapshot};
use usher_plugin::{Import, Learned, MalformedRecord};

use super::backlog::{Backlog, LearnedEndpoint};
use super::evidence::Known;
use super::group::Group;
use super::groups::GroupKey;
use super::length::Length;
use super::mean::Mean;
use super::model::Model;
use super::ratio::Ratio;
use crate::record::{RecordReader, RecordWriter};

/// Version of the records.
const VERSION: u32 = 2;

/// Kinds of records, their first byte.
const POOL: u8 = 0;
const GROUP: u8 = 1;
const ENDPOINTS: u8 = 2;
const LENGTHS: u8 = 3;

/// Endpoints that are handed on at most, and those of a record.
const MOST_ENDPOINTS: usize = 4096;
const ENDPOINTS_AT_ONCE: usize = 8;

/// Models and flows of a record.
const LENGTHS_AT_ONCE: usize = 256;

impl Model {
    /// Means of the pool that are handed on, in the order in which they are written.
    fn means(&self) -> [&Mean; 5] {
        let traffic = &self.traffic;
        [
            &self.mean_output,
            &self.mean_first,
            &self.mean_response,
            &traffic.mean_uncached,
            &traffic.mean_prompt,
        ]
    }

    /// Ratios of the pool that are handed on, likewise.
    fn ratios(&self) -> [&Ratio; 3] {
        let [cached, others] = self.hits().sums();
        [self.scale().sums(), cached, others]
    }

    fn write_pool(&self) -> Option<RecordWriter> {
        let all = self.lengths.all();
        (all.samples > 0).then(|| {
            let mut out = RecordWriter(vec![POOL]);
            all.write(&mut out, Length::write);
            self.means().iter().for_each(|mean| out.f64(mean.get()));
            self.ratios().iter().for_each(|ratio| ratio.write(&mut out));
            out
        })
    }

    fn read_pool(&self, record: &mut RecordReader<'_>, cx: &Import<'_>) -> Result<u64, MalformedRecord> {
        let all = Known::read(record, cx, Length::read)?;
        let means = record.f64s::<5>(&(0.0..=1e12))?;
        let ratios = [Ratio::read(record)?, Ratio::read(record)?, Ratio::read(record)?];
        end(*record)?;
        if !self.lengths.replace_all(all, cx.now_ms) {
            return Ok(0);
        }
        self.means().iter().zip(means).for_each(|(mean, value)| mean.set(value));
        self.ratios().iter().zip(ratios).for_each(|(ratio, sums)| ratio.set(sums));
        Ok(1)
    }

    /// The groups that have learned something: first the one whose times count where nothing else is known.
    fn write_groups(&self) -> Vec<RecordWriter> {
        let mut groups = self.groups.all();
        groups.retain(|(_, group)| !group.is_new());
        let text = |key: &GroupKey| [key.accelerator(), key.role()].map(|label| label.map(str::to_owned));
        groups.sort_by_cached_key(|(key, group)| (!Arc::ptr_eq(group, self.groups.first()), text(key)));
        let write = |(key, group): &(GroupKey, Arc<Group>)| {
            let mut out = RecordWriter(vec![GROUP]);
            out.u64(self.transfers());
            key.write(&mut out);
            group.write(&mut out);
            out
        };
        groups.iter().map(write).collect()
    }

    fn read_group(&self, record: &mut RecordReader<'_>, cx: &Import<'_>) -> Result<u64, MalformedRecord> {
        let (transfers, key) = (record.u64()?, GroupKey::read(record)?);
        // Read by any group: the bounds are the same.
        let mut learned = self.groups.first().read(record, cx)?;
        end(*record)?;
        if !self.has_transfers(transfers) {
            learned.forget_transfers();
        }
        let place = (cx.snapshot, cx.now_ms);
        let group = self.groups.of_record(key, learned.observed_ms(), place, self.initial_rate());
        let Some(group) = group else { return Ok(0) };
        Ok(u64::from(group.replace(learned, cx.now_ms)))
    }

    fn write_endpoints(&self, snapshot: &Snapshot) -> Vec<RecordWriter> {
        let entries = self.entries.load();
        let known = snapshot.endpoints().iter().filter_map(|endpoint| {
            let entry = entries.get(endpoint.slot().number() as usize)?.as_ref()?;
            Some((endpoint, &entry.backlog))
        });
        let known: Vec<_> = known.take(MOST_ENDPOINTS).collect();
        let write = |some: &[(&Arc<Endpoint>, &Arc<Backlog>)]| {
            let mut out = RecordWriter(vec![ENDPOINTS]);
            out.u64(self.transfers());
            for (endpoint, backlog) in some {
                out.endpoint(endpoint, backlog.started());
                backlog.write(&mut out);
            }
            out
        };
        known.chunks(ENDPOINTS_AT_ONCE).map(write).collect()
    }

    fn read_endpoints(&self, record: &mut RecordReader<'_>, cx: &Import<'_>) -> Result<u64, MalformedRecord> {
        let (transfers, mut all) = (record.u64()?, Vec::new());
        while !record.is_empty() {
            all.push((record.endpoint(cx.snapshot)?, LearnedEndpoint::read(record, cx)?));
        }
        let (mut taken, has_transfers) = (0, self.has_transfers(transfers));
        for (named, learned) in all {
            let Some(endpoint) = named.same() else { continue };
            let learned = if has_transfers { learned } else { learned.without_link() };
            taken += u64::from(self.backlog(endpoint).import(learned, named.started, cx.now_ms));
        }
        Ok(taken)
    }

    fn write_lengths(&self) -> Vec<RecordWriter> {
        let write = |some: &[_]| {
            let mut out = RecordWriter(vec![LENGTHS]);
            self.lengths.write(some, &mut out);
            out
        };
        self.lengths.by_kind().chunks(LENGTHS_AT_ONCE).map(write).collect()
    }
}

/// Checks that nothing is behind what was read.
fn end(record: RecordReader<'_>) -> Result<(), MalformedRecord> {
    record.is_empty().then_some(()).ok_or(MalformedRecord)
}

impl Learned for Model {
    fn format(&self) -> String {
        format!("latency-model/{VERSION}")
    }

    fn export(&self, snapshot: &Snapshot, record: &mut dyn FnMut(&[u8]) -> bool) {
        let parts: [&dyn Fn() -> Vec<RecordWriter>; 4] = [
            &|| self.write_pool().into_iter().collect(),
            &|| self.write_groups(),
            &|| self.write_endpoints(snapshot),
            &|| self.write_lengths(),
        ];
        for out in parts.iter().flat_map(|part| part()) {
            if !record(&out.0) {
                return;
            }
        }
    }

    fn import(&self, record: &[u8], cx: &Import<'_>) -> Result<u64, MalformedRecord> {
        let mut record = RecordReader(record);
        match record.u8()? {
            POOL => self.read_pool(&mut record, cx),
            GROUP => self.read_group(&mut record, cx),
            ENDPOINTS => self.read_endpoints(&mut record, cx),
            LENGTHS => self.lengths.import(&mut record, cx),
            _ => Err(MalformedRecord),
        }
    }
}

#[cfg(test)]
#[path = "learned_tests.rs"]
mod tests;
