//! Recordings of `usher serve --record`.

use std::collections::HashMap;
use std::time::Duration;

use usher_lab::replay::{Recorded, Recording};
use usher_lab::sim::EngineConfig;

/// Longest time between two requests.
const LONGEST: Duration = Duration::from_secs(720 * 3600);

/// The input is a file.
///
/// - It is a recording, or an error of a line.
/// - Without its last line it has as many requests, or one fewer.
/// - Requests are in order, and have the prompts that were read, in parts that are equal or apart.
/// - Engines can be made of its endpoints, and names have no control characters.
pub fn recording(bytes: &[u8]) {
    let whole = Recording::parse("a.jsonl", bytes);
    let end = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let before = end.iter().rposition(|byte| *byte == b'\n').map_or(&[][..], |at| &bytes[..=at]);
    let before = Recording::parse("a.jsonl", before);
    match (&whole, &before) {
        (Ok(whole), Ok(before)) => {
            let (count, most) = (whole.requests.len(), before.requests.len());
            assert!(count == most || count == most + 1, "{count} of {most}");
        }
        (Ok(whole), Err(_)) => assert_eq!(whole.requests.len(), 1),
        // A last line may be of a newer version, or too late.
        (Err(error), _) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
    if let Ok(whole) = &whole {
        check(whole);
    }
}

fn check(recording: &Recording) {
    for note in &recording.notes {
        assert!(!note.contains(char::is_control), "{note:?}");
    }
    let (requests, arrivals) = (&recording.requests, recording.arrivals(1));
    assert!(requests.is_sorted_by_key(|request| request.at));
    assert!(requests.iter().all(|request| request.at <= LONGEST));
    for (request, arrival) in requests.iter().zip(&arrivals) {
        assert_eq!(u64::from(arrival.prompt_tokens()), request.prompt_tokens);
    }
    apart(requests);
    let servers = recording.servers(&EngineConfig::default());
    assert_eq!(
        (servers.len(), arrivals.len()),
        (recording.members.len(), recording.outcomes().requests.len())
    );
    for server in servers {
        server.engine.validate().expect("its cache holds a request");
        assert!(!server.name.contains(char::is_control), "{:?}", server.name);
    }
}

/// Parts of prompts that begin with the same block are equal, and no other part has one of their blocks.
fn apart(requests: &[Recorded]) {
    let mut parts: HashMap<(usize, u64), u32> = HashMap::new();
    for request in requests {
        for (first, count) in &request.blocks {
            assert_eq!(parts.entry((request.run, *first)).or_insert(*count), count);
        }
    }
    let mut sorted: Vec<_> = parts.into_iter().collect();
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        let [((run, first), count), ((other, next), _)] = pair else { unreachable!() };
        assert!(run != other || first + u64::from(*count) <= *next, "{pair:?}");
    }
}
