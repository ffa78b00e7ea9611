//! Tests of the limit after some samples, without a process.

use super::*;

const MI: u64 = 1 << 20;

/// A process of 1,600 MiB: 1,500 are for the base and what is counted, 50 of them in the end by halves.
const PROCESS: u64 = 1600 * MI;

fn read(meter: &mut Meter, seconds: u64, resident: u64, counted: u64, pending: u64) -> Reading {
    let sample = Sample { resident: resident * MI, counted: counted * MI, pending: pending * MI };
    meter.read(Duration::from_secs(seconds), sample)
}

/// The limit that leaves so many MiB for what is counted, and a little for what may be beyond it.
fn limit_for(room: u64) -> u64 {
    within(room * MI)
}

#[test]
fn limit_is_the_budget_minus_uncounted_memory() {
    // resident, counted; what is for all that is counted
    for (resident, counted, room) in [(100, 0, 1350), (500, 400, 1350), (900, 300, 850), (1480, 1080, 1090)] {
        let reading = read(&mut Meter::new(PROCESS), 0, resident, counted, 0);
        assert_eq!(reading.limit, limit_for(room), "{resident} {counted}");
        assert_eq!(reading.base, (resident - counted) * MI);
    }
    let all = limit_for(1400);
    assert!(all + all / 16 <= 1400 * MI && all + all / 16 > 1399 * MI, "what may be beyond it fits");
}

#[test]
fn allocation_burst_lowers_the_limit_for_seconds_only() {
    let mut meter = Meter::new(PROCESS);
    assert_eq!(read(&mut meter, 0, 100, 0, 0).limit, limit_for(1350));
    // Bodies take twice what is counted, and go; the allocator keeps some for a moment.
    let storm = read(&mut meter, 3, 900, 400, 0);
    assert_eq!(storm.base, 100 * MI);
    let after = read(&mut meter, 4, 500, 0, 0);
    assert_eq!(after.limit, limit_for(950), "it is still there");
    assert_eq!(read(&mut meter, 5, 110, 0, 0).limit, limit_for(1340));
    // What stays for longer than ten seconds belongs to the base.
    for second in 6..=9 {
        assert_eq!(read(&mut meter, second, 300, 0, 0).base, 100 * MI, "{second}");
    }
    assert_eq!(read(&mut meter, 10, 300, 0, 0).base, 110 * MI);
    assert_eq!(read(&mut meter, 14, 300, 0, 0).base, 110 * MI);
    let reading = read(&mut meter, 15, 300, 0, 0);
    assert_eq!((reading.base, reading.limit), (300 * MI, limit_for(1150)));
    // And comes back at once.
    assert_eq!(read(&mut meter, 15, 120, 0, 0).limit, limit_for(1330));
    // Nobody looked for long.
    assert_eq!(read(&mut meter, 1000, 700, 0, 0).base, 700 * MI);
}

#[test]
fn limit_does_not_grow_near_the_budget() {
    let mut meter = Meter::new(PROCESS);
    read(&mut meter, 0, 100, 0, 0);
    // resident, counted, pending; what may be counted
    for (resident, counted, pending, room) in [
        (1000, 500, 0, 950),
        (1480, 700, 0, 710),
        (1500, 700, 0, 700),
        (1600, 700, 0, 700),
        (1340, 700, 100, 830),
        (1400, 700, 100, 800),
    ] {
        let reading = read(&mut meter, 1, resident, counted, pending);
        assert_eq!(reading.limit, limit_for(room), "{resident} {counted} {pending}");
        assert_eq!(reading.is_near, resident + pending > 1300, "{resident} {pending}");
        // It is over when that is over.
        let reading = read(&mut meter, 1, 300, 200, 0);
        assert_eq!((reading.limit, reading.is_near), (limit_for(1350), false));
    }
}

#[test]
fn limit_shrinks_to_zero_as_resident_memory_grows() {
    for (resident, limit) in
        [(1440, limit_for(30)), (1460, limit_for(20)), (1498, limit_for(1)), (1510, 0), (5000, 0)]
    {
        assert_eq!(read(&mut Meter::new(PROCESS), 0, resident, 0, 0).limit, limit, "{resident}");
    }
}

#[test]
fn a_small_process_keeps_more_in_reserve() {
    for (process, kept) in [(16, 2), (80, 10), (96, 12), (128, 12), (192, 12), (256, 16), (4096, 256)] {
        assert_eq!(reserve(process * MI), kept * MI, "{process}");
    }
}
