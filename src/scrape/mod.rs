//! What model servers say about themselves, read in the background.
//!
//! Data flows from the [`Scraper`], which gives every endpoint a task and a
//! place in the interval, through a keep-alive connection piece by piece into
//! the [`exposition`] scanner, which finds the metrics that the endpoint's
//! [`Engine`] names, and, when the page is complete, from the [`Readings`] into
//! the endpoint's [`Load`](crate::endpoints::Load).

mod builtin;
mod client;
mod engine;
pub mod exposition;
mod labels;
mod metrics;
pub mod params;
mod readings;
mod report;
mod scanner;
mod schedule;
mod scraper;
mod selector;

pub use client::ScrapeError;
pub use engine::{AttributeSpec, ENGINE_LABEL, Engine, EngineSpec, Engines, Field, Fields};
pub use labels::{LabelValue, Labels};
pub use metrics::{EXTRACTOR_TYPE, SOURCE_TYPE, ScrapeMetrics};
pub use readings::{Problems, Readings};
pub(crate) use schedule::phase;
pub use scraper::{ScrapeConfig, Scraper};
