//! Progress on standard error: one line that is rewritten on a terminal, and
//! now and then a line of its own elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Between two lines of a step where lines can't be rewritten.
const PAUSE: Duration = Duration::from_secs(3);

/// Shows steps and how far they are.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    last: Option<Instant>,
}

impl Default for Progress {
    /// Nothing shown yet.
    fn default() -> Self {
        Self { terminal: stderr().is_terminal(), last: None }
    }
}

impl Progress {
    /// A new step.
    pub fn step(&mut self, text: &str) {
        self.last = Some(Instant::now());
        self.write(text);
    }

    /// How far the step is. May be called often.
    pub fn update(&mut self, text: &str) {
        if self.terminal || self.last.is_none_or(|last| last.elapsed() >= PAUSE) {
            self.step(text);
        }
    }

    // Nothing can be done about a closed standard error.
    fn write(&self, text: &str) {
        let _ = match self.terminal {
            // To the start of the line, and clear it.
            true => write!(stderr(), "\r\x1b[2K{text}").and_then(|()| stderr().flush()),
            false => writeln!(stderr(), "{text}"),
        };
    }

    /// Removes the line, so that something else can stand there.
    pub fn clear(&mut self) {
        if self.terminal {
            self.write("");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
