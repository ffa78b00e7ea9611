//! Expected latency: how long a request would wait for its first token and take to be
//! answered at each endpoint, and how much longer others would take for it.
//!
//! A decision reads a [`Table`] and weighs the formulas of [`cost`]; `docs/guide/expected-latency.md`
//! derives them. What was decided is [`Booked`] with the endpoints. As first tokens and ends
//! of streams come, the bookings teach the speeds: `fit` the times of a group of endpoints
//! that should be equal, `factor` how much one of them differs.
//!
//! A pool has one [`Model`]. Plugins read it through a [`Reader`] each, and the first of them books the
//! request.

mod accuracy;
mod arrivals;
mod backlog;
mod batch_slots;
mod booking;
mod build;
mod busy_periods;
mod chance;
pub mod cost;
mod disaggregated;
mod distribution;
mod evidence;
mod factor;
mod fit;
mod group;
mod groups;
mod histograms;
mod hits;
mod ignored;
mod kv_transfer;
mod learned;
mod length;
mod lengths;
mod link;
mod link_queue;
mod logarithm;
mod mean;
mod metrics;
mod model;
mod own_times;
mod persistent;
mod predicted;
mod rate;
mod ratio;
mod reader;
mod report;
mod residuals;
mod running;
mod scale;
mod table;
mod targets;
mod time;
mod tpot_target;
mod work_totals;

pub use accuracy::{BandAccuracy, Prediction};
pub use backlog::Backlog;
pub use booking::{Booked, DisaggregatedWork, Work};
pub(crate) use build::{reads_latency, transfers};
pub(crate) use chance::EQUAL_CHANCE;
pub use chance::{Outlook, RequestTargets};
pub use cost::{Cost, PerOutput, Pool, Speed, State, TokenCounts};
pub use disaggregated::{DecodePart, PrefillPart};
pub use distribution::Distribution;
pub use hits::HitRatios;
pub use ignored::SloMetrics;
pub use lengths::{Expected, Kind};
pub use link::Transfers;
pub use metrics::LatencyMetrics;
pub use model::Model;
pub use rate::InitialRate;
pub(crate) use rate::{PEAK_PREFILL_THROUGHPUT, check_throughput};
pub use reader::Reader;
pub(crate) use reader::{fresh, reported, targets};
pub use report::{FAR, FEWEST, GroupReport, LinkReport, Report};
pub use residuals::{BANDS, Residuals, band};
pub use table::{Reported, Table};
