//! Scraping and asking servers that speak raw HTTP: every kind of page, source and misbehaviour.

mod odd;
mod pool;
mod queries;
mod server;
mod sources;
mod spread;
mod tls;
