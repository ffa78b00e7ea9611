//! Profile handlers, one file per kind, and what writes their decisions into headers.

pub(crate) mod data_parallel;
pub(crate) mod disagg;
pub(crate) mod disagg_headers;
pub(crate) mod header_profile;
pub(crate) mod single;

pub use data_parallel::{DataParallelParams, DataParallelProfileHandler};
pub use disagg::{
    AlwaysDecider, Decisions, DisaggFamily, DisaggParams, DisaggProfileHandler, Joint, JointParams,
    MultimodalDecider, PdFamily, PdParams, PdProfileHandler, PrefixBasedPdDecider, PrefixBasedPdParams,
    StageOrder, StageProfiles,
};
pub use disagg_headers::{DisaggHeaders, DisaggHeadersParams};
pub use header_profile::{HeaderProfileHandler, HeaderProfileParams};
pub use single::SingleProfileHandler;
