//! A JSON document that is read while it arrives: a body, or a part of one.

use super::collect::{Collector, Format, Parsed};
use super::error::ParseError;
use super::json::{JsonError, Scanner};

/// A JSON document that is read.
#[derive(Debug)]
pub(super) struct JsonReading {
    scanner: Scanner,
    collector: Collector,
    error: Option<JsonError>,
}

impl JsonReading {
    /// A document of this format that begins at an offset of its body.
    pub(super) fn new(format: &'static Format, offset: usize) -> Self {
        Self { scanner: Scanner::at(offset), collector: Collector::new(format), error: None }
    }

    pub(super) fn feed(&mut self, chunk: &[u8]) {
        if self.error.is_none() {
            self.error = self.scanner.feed(chunk, &mut self.collector).err();
        }
    }

    /// The first wrong byte.
    pub(super) fn problem(&self) -> Option<ParseError> {
        self.error.map(ParseError::from)
    }

    /// Bytes that are kept of what the document said.
    pub(super) fn counted(&self) -> usize {
        self.collector.counted()
    }

    pub(super) fn finish(&mut self) -> Result<Parsed, ParseError> {
        if let Some(error) = self.error {
            return Err(error.into());
        }
        self.scanner.finish(&mut self.collector)?;
        self.collector.finish().map_err(ParseError::Shape)
    }
}
