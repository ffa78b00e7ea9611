//! Requests whose stages run on several endpoints: one decodes; another may compute the
//! prompt, and others encode its images, videos and clips.

pub(crate) mod always;
mod decisions;
mod joint;
mod params;
pub(crate) mod pd;
pub(crate) mod prefix_decider;
pub(crate) mod profiles;
mod references;
mod stages;
mod written;

pub use always::{AlwaysDecider, MultimodalDecider};
pub use decisions::{Decisions, DisaggFamily, PdFamily};
pub use joint::{Joint, JointParams};
pub use params::{DisaggParams, StageOrder};
pub use pd::{PdParams, PdProfileHandler};
pub use prefix_decider::{PrefixBasedPdDecider, PrefixBasedPdParams};
pub use profiles::DisaggProfileHandler;
pub use written::StageProfiles;
