//! The recording of a pool in a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus::Registry;

use super::RunError;
use crate::endpoints::Store;
use crate::memory::Budget;
use crate::observe::counters::{Kind, Number};
use crate::recorder::{Counts, Recorder, Settings, Writer};
use crate::settings::ServeSettings;
use crate::version::VERSION;

/// Starts the recording that the settings ask for, and registers its numbers.
///
/// # Errors
/// `RunError` if its file can't be used.
pub(super) fn start(
    settings: &ServeSettings,
    store: &Arc<Store>,
    budget: &Arc<Budget>,
    registry: &Registry,
) -> Result<Option<Writer>, RunError> {
    let Some(recording) = &settings.recording else { return Ok(None) };
    let of = Settings {
        path: &recording.file,
        max_bytes: recording.max_bytes,
        pool: settings.pool.label(),
        version: VERSION,
    };
    let writer =
        Writer::start(&of, store, budget).map_err(|error| RunError::Config(format!("--record: {error}")))?;
    register(writer.recorder(), registry)?;
    Ok(Some(writer))
}

fn register(recorder: &Arc<Recorder>, registry: &Registry) -> prometheus::Result<()> {
    let numbers: [(&str, &str, fn(&Counts) -> &AtomicU64); 4] = [
        ("usher_recording_lines_total", "Lines written to the recording.", |counts| &counts.lines),
        ("usher_recording_bytes_total", "Bytes written to the recording.", |counts| &counts.bytes),
        (
            "usher_recording_dropped_total",
            "Requests missing in the recording: the queue was full, or the file could not be written.",
            |counts| &counts.dropped,
        ),
        ("usher_recording_errors_total", "Failures to open or write the recording.", |counts| &counts.errors),
    ];
    for (name, help, read) in numbers {
        let recorder = Arc::clone(recorder);
        let number = Number::new(name, help, Kind::Counter, move || read(recorder.counts()).load(Relaxed))?;
        registry.register(Box::new(number))?;
    }
    Ok(())
}
