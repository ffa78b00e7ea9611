//! Profile handlers, one file per kind, and what writes their decisions into headers.

mod data_parallel;
mod disagg;
mod disagg_headers;
mod header_profile;
mod single;

pub use data_parallel::{DataParallelParams, DataParallelProfileHandler};
pub use disagg::{
    AlwaysDecider, Decisions, DisaggFamily, DisaggParams, DisaggProfileHandler, Joint, JointParams,
    MultimodalDecider, PdFamily, PdParams, PdProfileHandler, PrefixBasedPdDecider, PrefixBasedPdParams,
    StageOrder, StageProfiles,
};
pub use disagg_headers::{DisaggHeaders, DisaggHeadersParams};
pub use header_profile::{HeaderProfileHandler, HeaderProfileParams};
pub use single::SingleProfileHandler;
