//! Memory of exchanges, whatever happens on their streams.

use proptest::prelude::*;

use super::memory::{COMPLETION, part, used};
use super::order::any_event;
use super::*;

#[derive(Clone, Debug)]
enum Move {
    Event(Event),
    Part(usize),
    /// The decision comes.
    Decide,
    /// The gateway takes replies.
    Take,
    Abort,
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => any_event().prop_map(Move::Event),
        4 => (0..40_000usize, any::<bool>()).prop_map(|(bytes, end)| Move::Event(part(bytes, end))),
        3 => (0..200_000usize).prop_map(Move::Part),
        2 => Just(Move::Decide),
        2 => Just(Move::Take),
        1 => Just(Move::Abort),
    ]
}

struct Stream {
    harness: Harness,
    question: Option<DecisionRequest>,
    ended: bool,
}

impl Stream {
    fn new(budget: &Arc<Budget>) -> Self {
        let mut harness = Harness::within(1, budget);
        harness.send(headers(&COMPLETION, false)).unwrap();
        Self { harness, question: None, ended: false }
    }

    fn note(&mut self, step: Step) {
        match step {
            Step::Continue => {}
            Step::Decide(question) => self.question = Some(question),
            Step::End => self.ended = true,
        }
        if !self.harness.exchange.is_deciding() {
            self.question = None;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any moves of several streams that end in any order: parts of messages count, never more than the
    /// budget and a sixteenth of it, and nothing in the end.
    #[test]
    fn all_memory_is_released(
        moves in prop::collection::vec((0..4usize, any_move()), 0..60),
        unwritten in 0..3usize,
    ) {
        let budget = Arc::new(Budget::new(120_000 + 4 * Budget::STREAM, 0));
        let mut streams: [Option<Stream>; 4] = Default::default();
        let mut taken = Vec::new();
        for (which, what) in moves {
            let stream = streams[which].get_or_insert_with(|| Stream::new(&budget));
            if stream.ended && !matches!(what, Move::Take) {
                streams[which] = None;
                continue;
            }
            match what {
                Move::Event(event) => match stream.harness.exchange.on_message(message(event), Instant::now()) {
                    Ok(step) => stream.note(step),
                    Err(_) => stream.ended = true,
                },
                Move::Part(bytes) => {
                    let step = stream.harness.exchange.on_part(bytes, Instant::now());
                    prop_assert!(matches!(step, Step::End) || used(&budget) >= bytes);
                    stream.note(step);
                }
                Move::Decide => if let Some(question) = stream.question.take() {
                    let step = stream.harness.decide(&question);
                    drop(question);
                    stream.note(step);
                },
                Move::Take => {
                    while stream.harness.exchange.next_reply().is_some() {}
                    taken.extend(stream.harness.exchange.settle());
                    if taken.len() > unwritten {
                        taken.remove(0);
                    }
                }
                Move::Abort => streams[which] = None,
            }
            let limit = budget.limit().unwrap();
            prop_assert!(used(&budget) as u64 <= limit + limit / 16);
        }
        drop(streams);
        drop(taken);
        prop_assert_eq!(used(&budget), 0);
    }
}
