//! Text with a bound.

use std::io::{self, Write};

/// Bytes of a chat's text at most, and of the JSON that its template makes of it. Bodies are at most a quarter of that; but
/// indented JSON has ever more spaces the deeper it is.
pub(super) const MAX_TEXT: usize = 16 << 20;

/// Bytes that were written, up to a limit.
#[derive(Debug)]
pub(super) struct Limited {
    bytes: Vec<u8>,
    limit: usize,
    is_over: bool,
}

impl Limited {
    /// None yet, of so many at most.
    pub(super) fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit, is_over: false }
    }

    /// Returns `true` if there were more than may be.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// All of it as text; `None` if it is none, or there was more.
    pub(super) fn into_text(self) -> Option<String> {
        if self.is_over { None } else { String::from_utf8(self.bytes).ok() }
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            self.is_over = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
