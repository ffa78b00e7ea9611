//! `usher serve`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::flags::ServeArgs;
use super::logging;
use crate::extproc::listen::Listeners;
use crate::extproc::stop::StopSignals;
use crate::registry::PluginTypes;
use crate::settings::Environment;
use usher_terminal::CliError;

/// Time for background work that is in the middle of something when everything else has
/// ended.
const LAST_WORK: Duration = Duration::from_secs(1);

/// Serves until a signal. Its configuration may name these plugin types.
pub(super) fn serve(args: ServeArgs, types: &PluginTypes) -> Result<(), CliError> {
    let settings = args.settings(Environment::of_process()).map_err(CliError::Usage)?;
    let log_level = Arc::new(logging::start(settings.log));
    let setup = crate::Setup::with_plugins(settings, types)?.with_log_level(log_level);
    // Discovery, scraping, accepting and the small servers share this thread; requests
    // have their own.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| system(&error))?;
    let result = runtime.block_on(async {
        let stops = StopSignals::from_signals().map_err(|error| system(&error))?;
        let listeners =
            Listeners::bind(&setup.settings().listen).map_err(|error| CliError::Failed(error.to_string()))?;
        Ok(crate::run(setup, listeners, stops).await?)
    });
    runtime.shutdown_timeout(LAST_WORK);
    result
}

fn system(error: &io::Error) -> CliError {
    CliError::Failed(format!("cannot start: {error}; check the limits on threads and open files"))
}
