//! Decisions from outside: scorers against tables and against an independent implementation, pickers,
//! profiles, handlers, records and metrics; what configurations come to; requests that wait, and what is
//! booked for those that are under way; where endpoints and their numbers come from: lists in files, and pages
//! that are scraped, with every kind of misbehaviour.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

#[path = "../support/lines.rs"]
mod lines;

mod admission;
mod attribute_sources;
mod attributes;
mod balance;
mod booking;
mod booking_races;
mod burst;
mod decisions;
mod disagg;
mod discovery;
mod expected_latency;
mod exposition;
mod filters_header;
mod filters_labels;
mod filters_load;
mod filters_parameters;
mod flow;
mod golden;
mod handlers;
mod hanging;
mod joint;
mod joint_cost;
mod joint_load;
mod latency_learning;
mod latency_model;
mod locator;
mod middleware;
mod multicluster;
mod names;
mod outliers;
mod p2p_source;
mod pages;
mod pickers;
mod pipeline;
mod pool;
mod predicted_latency;
mod prefill_profile;
mod prefix_blocks;
mod prefix_caches;
mod prefix_capacity;
mod prefix_filter;
mod prefix_parameters;
mod prefix_scorers;
mod producers;
mod references;
mod reported;
mod saturation;
mod scorers;
mod scorers_affinity;
mod scorers_load;
mod scraper;
mod settle;
mod sim_scrape;
mod slo;
mod slo_pairs;
mod support;
mod topology;
