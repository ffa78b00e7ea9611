//! Scraping: data that model servers and GPU exporters serve, read in the background.
//!
//! Data flows from the [`Scraper`], which gives every endpoint a task and a
//! place in the interval, through a keep-alive connection piece by piece into
//! the [`exposition`] scanner, which finds the metrics that the endpoint's
//! [`Engine`] names, and, when the page is complete, from the [`Readings`] into
//! the endpoint's [`Load`](crate::endpoints::Load).

mod builtin;
mod client;
mod config;
mod engine;
pub mod exposition;
mod extraction;
mod inflate;
mod joined;
mod labels;
mod metrics;
mod models;
mod page;
pub mod params;
mod poll;
mod readings;
mod report;
mod request;
mod response;
mod scanner;
mod schedule;
mod scraper;
mod selector;
mod state;
mod times;
mod tls;

pub use client::ScrapeError;
pub use config::ScrapeConfig;
pub use engine::{
    AttributeReading, AttributeSpec, ENGINE_LABEL, Engine, EngineSpec, Engines, Field, Fields, Join,
};
pub use inflate::InflateError;
pub use labels::{LabelValue, Labels};
pub use metrics::{
    DCGM_EXTRACTOR_TYPE, DCGM_SOURCE_TYPE, EXTRACTOR_TYPE, MODELS_EXTRACTOR_TYPE, MODELS_SOURCE_TYPE,
    SOURCE_TYPE, ScrapeMetrics,
};
pub use page::{PageError, PageReader};
pub use readings::{Problems, Readings};
pub use response::{Encoding, Head, Part, ResponseError, ResponseReader};
#[cfg(feature = "lab")]
pub(crate) use schedule::phase;
pub use scraper::Scraper;
pub use selector::parse as parse_selector;
pub use tls::{TlsClient, TlsError, TlsSettings};
