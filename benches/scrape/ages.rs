//! Age of the data that a decision would find.

use std::io::stdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use usher::endpoints::{Clock, Load};

/// Between two looks. It shares no factor with the interval, so that every phase is seen.
const LOOK: Duration = Duration::from_millis(7);

/// Ages that count apart, in milliseconds; what is older counts as the last.
const AGES: usize = 10_000;

/// Looks at the loads in a thread until standard input says `end`, then prints the median
/// and the 99th percentile of what was seen since it said `start`, and ends the process.
pub fn watch(loads: Vec<Arc<Load>>, clock: Clock) {
    let ages: Arc<Vec<AtomicU64>> = Arc::new((0..AGES).map(|_| AtomicU64::new(0)).collect());
    let seen = Arc::clone(&ages);
    thread::spawn(move || {
        loop {
            let now = clock.now_ms();
            for load in &loads {
                // What was never read is as old as the process.
                let age = now - load.waiting.read_at_ms().unwrap_or(0).min(now);
                seen[usize::try_from(age).unwrap().min(AGES - 1)].fetch_add(1, Relaxed);
            }
            thread::sleep(LOOK);
        }
    });
    thread::spawn(move || {
        for line in stdin().lines() {
            match line.unwrap().as_str() {
                "start" => ages.iter().for_each(|age| age.store(0, Relaxed)),
                _ => break,
            }
        }
        println!("{} {}", percentile(&ages, 50), percentile(&ages, 99));
        std::process::exit(0);
    });
}

fn percentile(ages: &[AtomicU64], percent: u64) -> usize {
    let total: u64 = ages.iter().map(|age| age.load(Relaxed)).sum();
    let mut left = total * percent / 100;
    ages.iter()
        .position(|age| {
            let count = age.load(Relaxed);
            let here = count > left;
            left = left.saturating_sub(count);
            here
        })
        .unwrap_or(AGES)
}
