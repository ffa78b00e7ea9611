//! Tools to try Usher with: simulated model servers, a load generator, and the replay of requests in virtual
//! time, with the commands that show them. The product works without any of it.

pub mod cli;
pub mod load;
pub mod replay;
pub mod sim;
