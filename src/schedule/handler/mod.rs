//! Profile handlers, one file per kind.

mod single;

pub use single::SingleProfileHandler;
