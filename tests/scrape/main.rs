//! Where endpoints and their numbers come from: lists in files, pages that are scraped, and the servers
//! that serve them, with every kind of misbehaviour.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

mod discovery;
mod exposition;
mod pages;
mod scraper;
mod sim_scrape;
