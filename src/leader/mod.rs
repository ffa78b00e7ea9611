//! One of several replicas leads: it is the one that says it is ready, so that a gateway
//! sends it the requests. The replicas agree on it through a Lease object. Replicas that share their load
//! through a store are all ready, and the leader is the one that acts on the cluster.
//!
//! # What is safe
//!
//! For requests nothing but readiness depends on who leads. Every replica knows the endpoints,
//! scrapes them and answers whatever it is asked; two that lead at once, for a moment or for as
//! long as one of them is cut off from the API server, both respond correctly, and only
//! know less of each other's load. Acting on the cluster is another matter: a leader does so in
//! its [`Term`] only, which ends [`Timing::renew`] after it last began to renew the lease, before
//! another can take it, and before it is handed over or given up. That is why
//!
//! - a leader that can't reach the API server goes on leading. Stopping would make an
//!   outage of the API server one of the model servers. When it reaches the server again
//!   and finds another holder, it stops leading at once;
//! - the lease is short by default. [`Timing::default`] lets a replica take over 4 s after the last
//!   renewal that it saw of the leader. A leader that is alive but slow for that
//!   long, which with a long lease would be nothing, is at worst one of two for a moment;
//! - a replica that could not be ready takes no lease: it would only keep those from it that
//!   could, for as long as it runs. One of a broken configuration does no harm beside others.
//!
//! A write names the version of the Lease that it replaces, so the server lets one of two
//! through that write at the same time; the other looks again.
//!
//! A Lease that is deleted is created again by its holder; others that have seen it wait for as long as
//! it lasted. Nobody knows of all the holders that a deleted Lease had, so whoever creates one acts on
//! the cluster only when its duration has passed, by when their terms are over, and neither hands it
//! over nor gives it up before that.
//!
//! Takeover after a crash takes at most `lease` + `retry` and one request, 5 s and a bit:
//! the last renewal may have come just before the crash, and is seen up to `retry` later
//! by a replica whose watch of the Lease is broken (at once by the others). A leader that
//! ends in order gives the lease up, and others see that at once.
//!
//! Times are measured by each replica's own clock between things that it saw itself.
//! Times in the Lease are informative: a wrong clock on a node does no harm. The duration
//! in the Lease counts, not our own, so a leader with a longer lease is not robbed of it.

//! # Handing over
//!
//! A Deployment ends its old pods when new ones are ready, and of ours only the one that
//! leads is. So a replica of a newer [`Revision`] asks for the lease once it could serve as
//! well as the leader, and the leader makes it the holder. The two speak through
//! annotations of the Lease, which replicas of llm-d-router keep and don't read.
//!
//! - The leader leads on until the other says itself that it leads, and takes the lease back
//!   if that doesn't come while the lease lasts. Nothing depends on whether who asked is
//!   still there. Should a third take it then, that one counts as the new leader, whether it
//!   says so or not: a replica that doesn't know its revision, or of llm-d-router, never does.
//! - After that it is ready for [`Timing::linger`] more, and takes over again like any other
//!   if the new one falls silent. From the first leader on, one that lives is ready at any
//!   time, unless a ready one dies.
//! - Of any two replicas at most one replaces the other, so the lease wanders towards the
//!   newest and stays there. One that fails to lead can't make it wander back and forth:
//!   after that, the lease isn't handed over for 30 s.
//! - An ask is no renewal by the leader, and doesn't extend the waiting of others.

mod election;
mod lease;
mod object;
mod revision;
mod term;

pub use election::{Election, Fitness, Next, Record, Timing};
pub use lease::{Replica, elect};
pub use object::LeaseName;
pub use revision::{Candidate, Revision};
pub use term::Term;
