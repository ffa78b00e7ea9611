//! Workloads are what they say.

use std::collections::{HashMap, HashSet};

use super::independent::BURST;
use super::*;
use crate::replay::workload::Piece;

const ALL: [Workload; 4] = [Workload::Poisson, Workload::Bursts, Workload::HalfShared, Workload::SlowServer];

fn firsts(arrivals: &[Arrival]) -> HashMap<Piece, usize> {
    let mut counts = HashMap::new();
    for arrival in arrivals {
        *counts.entry(arrival.prompt[0]).or_default() += 1;
    }
    counts
}

#[test]
fn a_seed_gives_one_workload_about_one_request_a_second() {
    for workload in ALL {
        let arrivals = workload.arrivals(6400, 1, 3);
        assert_eq!(arrivals, workload.arrivals(6400, 1, 3), "{workload:?}");
        assert_eq!(arrivals[..100], workload.arrivals(100, 1, 3), "a shorter one is its start");
        assert_ne!(arrivals, workload.arrivals(6400, 1, 4), "{workload:?}");
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at), "{workload:?}");
        let span = arrivals[6399].at.as_secs_f64();
        assert!((span / 6400.0 - 1.0).abs() < 0.05, "{workload:?} {span}");
        assert!(arrivals.iter().all(|arrival| (1..=1000).contains(&arrival.output_tokens)));
        let own: HashSet<u64> = arrivals.iter().map(|a| a.prompt.last().unwrap().seed).collect();
        let distinct = if workload == Workload::Bursts { 6400 / BURST } else { 6400 };
        assert_eq!(own.len(), distinct, "{workload:?}: what a prompt has of its own");
    }
}

#[test]
fn prompts_share_prefixes_as_their_workload_defines() {
    let shared = |workload: Workload| firsts(&workload.arrivals(4000, 1, 0));
    assert_eq!(shared(Workload::Poisson).len(), 1);
    assert!(firsts(&Workload::Bursts.arrivals(6400, 1, 0)).values().all(|count| *count == BURST));
    let systems = shared(Workload::SlowServer);
    assert_eq!(systems.len(), 20);
    assert!(systems.iter().all(|(piece, count)| piece.tokens == 1000 && (120..280).contains(count)));
    let groups = shared(Workload::HalfShared);
    assert_eq!(groups.len(), 400);
    for arrival in Workload::HalfShared.arrivals(100, 1, 0) {
        assert_eq!(arrival.prompt[0].tokens, arrival.prompt[1].tokens);
    }
}

#[test]
fn burst_has_sixty_four_simultaneous_requests() {
    let arrivals = Workload::Bursts.arrivals(192, 1, 1);
    let bursts: Vec<&[Arrival]> = arrivals.chunk_by(|a, b| a.at == b.at).collect();
    assert_eq!(bursts.iter().map(|burst| burst.len()).collect::<Vec<_>>(), [64, 64, 64]);
    assert!(arrivals.iter().all(|arrival| arrival.prompt_tokens() == 1024));
}

#[test]
fn session_turn_repeats_the_history_and_waits_for_the_response() {
    let arrivals = Workload::Conversations.arrivals(2000, 50, 3);
    assert_eq!(arrivals, Workload::Conversations.arrivals(2000, 50, 3));
    let roots: Vec<_> = arrivals.iter().filter(|arrival| !arrival.follows()).collect();
    assert_eq!(roots.len(), 50, "each user begins once");
    assert!(roots.iter().all(|root| root.at.as_secs_f64() < sessions::THINKS));
    let mut longer = 0;
    for (position, arrival) in arrivals.iter().enumerate().filter(|(_, arrival)| arrival.follows()) {
        let [before] = arrival.after[..] else { panic!("one turn after another") };
        assert!((before as usize) < position);
        let before = &arrivals[before as usize];
        let repeated: Vec<Piece> = before.prompt.iter().copied().chain(before.response()).collect();
        if arrival.prompt.starts_with(&repeated) {
            longer += 1;
        } else {
            assert_eq!(arrival.prompt.len(), 2, "another conversation");
        }
    }
    assert!((0.75..0.95).contains(&(f64::from(longer) / 2000.0)), "{longer}");
}

#[test]
fn agent_branches_run_in_parallel_and_join() {
    let arrivals = Workload::Agents.arrivals(1000, 10, 1);
    let next = |number: u32| arrivals.iter().filter(|arrival| arrival.after.contains(&number)).count();
    assert!((2..=4).contains(&next(0)), "branches after the plan");
    let joins: Vec<_> = arrivals.iter().filter(|arrival| arrival.after.len() > 1).collect();
    assert!(joins.len() > 30 && joins.iter().all(|join| (2..=4).contains(&join.after.len())));
    let system = arrivals[0].prompt[0];
    assert!(arrivals.iter().all(|arrival| arrival.prompt[0] == system), "all share it");
}

#[test]
fn documents_are_requested_by_weight() {
    let counts = firsts(&Workload::Documents.arrivals(20_000, 1, 5));
    let mut counts: Vec<usize> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    // The integral of n^-0.6 from 0 to 9 by that to 900.
    let share = counts[..9].iter().sum::<usize>() as f64 / 2e4;
    assert!((share / 0.01f64.powf(0.4) - 1.0).abs() < 0.1, "{share}");
    assert!(counts.len() > 850);
}
