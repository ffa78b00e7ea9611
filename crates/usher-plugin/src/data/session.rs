//! Session of a request.

use crate::{DataType, Fact};

/// The name that a client gave its session; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionId(pub String);

impl Fact for SessionId {
    const DATA: DataType = DataType::SessionId;
}
