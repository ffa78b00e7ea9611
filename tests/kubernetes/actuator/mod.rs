//! Policies with `mode: Apply`: what plans say is done to real objects.
//!
//! No controllers, scheduler or kubelets run there: the tests make pods and move their status.

mod gates;
pub(crate) mod group;
mod keep;
mod leading;
mod replicas;
mod setup;
mod shrink;
mod single;
mod updates;
mod whose;
mod writers;
