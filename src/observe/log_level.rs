//! Level of the log, which changes while the process runs.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tracing::Level;

/// Names of the levels, for messages.
const NAMES: &str = "error, warn, info, debug or trace";

type Apply = Box<dyn Fn(Level) -> Result<(), String> + Send + Sync>;

/// Level of our own events in the log.
pub struct LogLevel {
    // Held while a level is applied, so that the last one that is asked for stands.
    level: Mutex<Level>,
    apply: Apply,
}

impl LogLevel {
    /// The level that the log starts with. `apply` changes it.
    pub fn new(level: Level, apply: impl Fn(Level) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { level: Mutex::new(level), apply: Box::new(apply) }
    }

    /// The level, as a line.
    pub fn page(&self) -> String {
        line(*self.level.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the level to the one that `text` names. Returns the new level, as a line.
    ///
    /// # Errors
    /// A message if the text is no level, or the log can't be changed.
    pub fn set(&self, text: &[u8]) -> Result<String, String> {
        let name = std::str::from_utf8(text).unwrap_or_default().trim().to_ascii_lowercase();
        let asked = match name.as_str() {
            "error" => Level::ERROR,
            "warn" => Level::WARN,
            "info" => Level::INFO,
            "debug" => Level::DEBUG,
            "trace" => Level::TRACE,
            _ => return Err(format!("no level of the log; send {NAMES}\n")),
        };
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        (self.apply)(asked)?;
        let previous = std::mem::replace(&mut *level, asked);
        // Of level error, so that it is in the log whatever the new level.
        tracing::error!(previous = name_of(previous), current = name_of(asked), "log level changed");
        Ok(line(asked))
    }
}

fn name_of(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

fn line(level: Level) -> String {
    format!("{}\n", name_of(level))
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLevel").field("level", &self.level).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_level_is_applied_once_it_is_understood() {
        let applied = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&applied);
        let level = LogLevel::new(Level::INFO, move |level| {
            seen.lock().unwrap().push(level);
            if level == Level::TRACE { Err("no".to_owned()) } else { Ok(()) }
        });
        assert_eq!(level.page(), "info\n");
        assert_eq!(level.set(b" DEBUG\n").unwrap(), "debug\n");
        for bad in [&b"loud"[..], b"", b"\xff", b"debug info"] {
            assert!(level.set(bad).unwrap_err().contains("send error, warn"), "{bad:?}");
        }
        assert_eq!(level.set(b"trace").unwrap_err(), "no");
        assert_eq!(level.page(), "debug\n");
        assert_eq!(*applied.lock().unwrap(), [Level::DEBUG, Level::TRACE]);
    }
}
