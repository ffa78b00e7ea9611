//! A tokenizer in this process: the text of a prompt as the engine makes it, and its tokens.

mod added;
mod cache;
mod chat;
mod direct;
mod encode_failure;
mod encoder;
mod fast;
mod files;
mod gatherer;
mod json;
mod limited;
mod model;
mod params;
mod pieces;
#[cfg(test)]
mod published;
mod size;
mod spaced;
mod template;
#[cfg(test)]
mod tests;
mod words;
mod workers;

pub use direct::DirectTokenizer;
pub(super) use gatherer::LocalTokenizer;
pub(super) use model::LocalModel;
pub use params::LocalParams;
