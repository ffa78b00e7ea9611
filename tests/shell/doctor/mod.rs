//! `usher doctor` from outside: a real Envoy with good and with broken configurations, and what
//! the doctor finds.

mod configurations;
mod faults;
mod imitations;
mod local;
mod pages;
pub(crate) mod program;
mod stack;
