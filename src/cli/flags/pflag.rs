//! Flags as llm-d-router's flag library (pflag) reads them, and as charts write them.

use std::time::Duration;

use clap::{Arg, Command};

use crate::config::units::parse_duration;

/// Name of a boolean flag's value in the help; marks the flag for [`as_pflag`].
pub(super) const BOOL: &str = "BOOL";

/// Makes the flags of a command read as llm-d-router's flag library (pflag) does: the last
/// of a repeated flag wins, a boolean stands alone or takes its value after `=`, any
/// other takes the next argument whatever it looks like.
pub fn as_pflag(command: Command) -> Command {
    command.args_override_self(true).mut_args(|arg: Arg| {
        let is_bool = arg.get_value_names().is_some_and(|names| names == [BOOL]);
        if is_bool {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true")
        } else {
            arg.allow_hyphen_values(true)
        }
    })
}

/// Parser of a duration up to `longest`, itself a duration; a longer one is a typing error.
pub(super) fn at_most(
    longest: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| match parse_duration(text)? {
        duration if duration > parse_duration(longest)? => {
            Err(format!("{text:?} is too long; write at most {longest}"))
        }
        duration => Ok(duration),
    }
}

/// A text that says something. Charts render flags that are not set as empty.
pub(super) fn given(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}
