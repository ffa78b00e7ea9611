//! Progress on standard error: a line that is rewritten on a terminal, with a bar where the end is known, and now and then
//! a line of its own elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Between two lines of a step where lines can't be rewritten.
const PAUSE: Duration = Duration::from_millis(1500);

/// Between two drawings on a terminal.
const FRAME: Duration = Duration::from_millis(100);

/// Shows steps and how far they are.
#[derive(Debug)]
pub struct Progress {
    /// On a terminal.
    bar: Option<ProgressBar>,
    /// `true` if there was a step.
    has_begun: bool,
    /// Time at which a line was written last, elsewhere.
    last: Option<Instant>,
}

impl Default for Progress {
    /// Nothing shown yet.
    fn default() -> Self {
        let bar = stderr().is_terminal().then(ProgressBar::new_spinner);
        Self { bar: bar.filter(|bar| !bar.is_hidden()), has_begun: false, last: None }
    }
}

impl Progress {
    /// A new step.
    pub fn step(&mut self, text: &str) {
        self.has_begun = true;
        match &self.bar {
            Some(bar) => {
                bar.unset_length();
                bar.set_style(style("{spinner} {wide_msg} {elapsed:>4}"));
                bar.reset_elapsed();
                bar.set_message(text.to_owned());
                bar.enable_steady_tick(FRAME);
            }
            None => {
                self.last = Some(Instant::now());
                // Nothing can be done about a closed standard error.
                let _ = writeln!(stderr(), "{text}");
            }
        }
    }

    /// Shows the progress of the step. May be called often.
    pub fn update(&mut self, text: &str) {
        match &self.bar {
            Some(bar) if self.has_begun => bar.set_message(text.to_owned()),
            Some(_) => self.step(text),
            None if self.last.is_none_or(|last| last.elapsed() >= PAUSE) => self.step(text),
            None => {}
        }
    }

    /// Shows the number of finished parts of the step. May be called often.
    pub fn part(&mut self, done: u64, all: u64, text: &str) {
        match &self.bar {
            Some(bar) => {
                if bar.length() != Some(all) {
                    bar.set_length(all);
                    bar.set_style(style("{spinner} {bar:20} {pos}/{len} {wide_msg} {elapsed:>4}"));
                }
                bar.set_position(done);
                bar.set_message(text.to_owned());
            }
            None => self.update(&format!("{done} of {all} {text}")),
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are the two above; one that is wrong shows as the usual spinner.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_valid() {
        for template in
            ["{spinner} {wide_msg} {elapsed:>4}", "{spinner} {bar:20} {pos}/{len} {wide_msg} {elapsed:>4}"]
        {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
