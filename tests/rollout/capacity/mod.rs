//! Sizes of groups, from outside: policies and timelines, and what comes of them.

mod compare;
mod definitions;
mod docs;
mod group;
mod growing;
mod kthena;
mod leaving;
mod missing;
mod outage;
mod policies;
mod program;
mod properties;
mod rules;
mod serving;
mod shares;
mod size;
mod support;
