//! Bounds of a replay against recordings of any origin.

use std::time::Duration;

use usher_core::recording::BlockRun;

use super::recorded::Recorded;
use crate::replay::error::LONGEST;

/// Requests of a replay at most.
pub(super) const MOST_REQUESTS: usize = 1_000_000;

/// Bytes that the lines of a recording may take in memory, about.
pub(super) const MOST_BYTES: usize = 1 << 30;

/// Longest prompt that is believed, in tokens; the longest contexts are a tenth of it.
pub(super) const MOST_PROMPT: u64 = 10_000_000;

/// Longest output that is believed, in tokens.
pub(super) const MOST_OUTPUT: u64 = 1 << 20;

/// Prompt tokens of all requests: text that each policy reads.
const MOST_PROMPTS: u64 = 1 << 34;

/// Generated tokens of all requests: steps of engines.
const MOST_OUTPUTS: u64 = 1 << 30;

/// Parts of all prompts.
const MOST_PARTS: usize = 1 << 23;

/// The time; `None` if no request takes so long.
pub(super) fn believable(us: u64) -> Option<Duration> {
    Some(Duration::from_micros(us)).filter(|time| *time <= LONGEST)
}

/// Splits the blocks of prompts so that two parts of one run of a picker are the same or have nothing in common. Returns
/// how many requests fit into the bounds; these are split.
pub(super) fn split(requests: &mut [Recorded]) -> usize {
    split_within(requests, MOST_PARTS)
}

fn split_within(requests: &mut [Recorded], most_parts: usize) -> usize {
    let cuts = cuts(requests);
    let (mut prompts, mut outputs, mut parts) = (0u64, 0u64, 0usize);
    for (position, request) in requests.iter_mut().enumerate() {
        prompts = prompts.saturating_add(request.prompt_tokens);
        outputs = outputs.saturating_add(request.output_tokens().unwrap_or(1));
        let split = cuts.get(request.run).map(|cuts| parts_of(&request.blocks, cuts)).unwrap_or_default();
        parts += split.len();
        if prompts > MOST_PROMPTS || outputs > MOST_OUTPUTS || parts > most_parts {
            return position;
        }
        request.blocks = split;
    }
    requests.len()
}

/// Numbers of each run at which some prompt begins or ends, or goes on with another number: between two of them all
/// prompts have the same blocks.
fn cuts(requests: &[Recorded]) -> Vec<Vec<u64>> {
    let runs = requests.iter().map(|request| request.run + 1).max().unwrap_or_default();
    let mut cuts = vec![Vec::new(); runs];
    for request in requests {
        for (first, count) in &request.blocks {
            cuts[request.run].extend([*first, first + u64::from(*count)]);
        }
    }
    for cuts in &mut cuts {
        cuts.sort_unstable();
        cuts.dedup();
    }
    cuts
}

fn parts_of(blocks: &[BlockRun], cuts: &[u64]) -> Vec<BlockRun> {
    let mut parts = Vec::with_capacity(blocks.len());
    for (first, count) in blocks {
        let (mut at, end) = (*first, first + u64::from(*count));
        while at < end {
            let next = cuts.get(cuts.partition_point(|cut| *cut <= at)).copied().unwrap_or(end).min(end);
            parts.push((at, (next - at) as u32));
            at = next;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(blocks: &[BlockRun]) -> Recorded {
        Recorded { blocks: blocks.into(), ..Recorded::default() }
    }

    #[test]
    fn split_block_runs_never_partly_overlap() {
        let mut requests = [request(&[(0, 9)]), request(&[(0, 3), (20, 2)]), request(&[(5, 4), (21, 0)])];
        assert_eq!(split(&mut requests), 3);
        let parts: Vec<_> = requests.iter().map(|request| request.blocks.clone()).collect();
        let expected = [vec![(0, 3), (3, 2), (5, 4)], vec![(0, 3), (20, 1), (21, 1)], vec![(5, 4)]];
        assert_eq!(parts, expected);
    }

    #[test]
    fn requests_beyond_the_bounds_are_left_out() {
        // Each of many cuts is in each of many prompts.
        let short = (0..50).map(|end| request(&[(0, end)]));
        let mut requests: Vec<Recorded> = short.chain((0..50).map(|_| request(&[(0, 50)]))).collect();
        assert_eq!(split_within(&mut requests, 1 << 20), 100);
        assert_eq!(split_within(&mut requests, 49 * 50 / 2 + 50), 51);
        let long = |prompt_tokens| Recorded { prompt_tokens, ..request(&[]) };
        assert_eq!(split(&mut vec![long(MOST_PROMPT); 1720]), 1717);
    }
}
