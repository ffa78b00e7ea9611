//! Records of the last decisions, kept to explain them.
//!
//! While a request is decided, its profiles write numbers into the thread's [`Trace`]. A [`Draft`] copies the part
//! that is kept of them: all of a small pool, the best candidates of a large one. With the request's id it enters
//! [`Records`], a bounded ring, and [`Tracked`] adds what became of the request when its response ends. Nothing is
//! formatted before it is read, and nothing of a prompt is in it.
//!
//! Where decisions are recorded into a file, too, the same draft goes to the [recorder](crate::recorder).

mod draft;
mod notable;
mod outcome;
mod pace;
mod queue;
mod record;
mod recorded;
mod request_names;
mod ring;
mod row;
mod subject;
mod text;
mod trace;
mod tracked;

pub use draft::{Draft, Sinks};
pub use outcome::{Ending, Outcome};
pub use record::{DecisionRecord, EngineKnown, ProfileRecord, Refusal};
pub use ring::{Records, Summary};
pub use row::{HiddenBy, Row, Signals};
pub use subject::Subject;
pub use text::{SHOWN, bounded, is_unprintable};
pub use trace::{DETAILED, RunTrace, Shape, Step, Trace};
pub use tracked::{Response, Tracked};

#[cfg(test)]
mod tests;
