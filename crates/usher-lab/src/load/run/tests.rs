use std::net::TcpListener;

use super::*;
use crate::load::settings::{Api, Arrivals};

/// A run against who never responds, over time that stands still unless all wait for it.
async fn silence(listener: &TcpListener, most: u64) -> Rc<Run> {
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = Gateway::connect(&url, Api::Chat.path(), &[]).await.unwrap();
    let style = Style { api: Api::Chat, model: "m".to_owned(), stream: false };
    let packer = Packer { style, output_tokens: None, messages: None };
    let begin = Instant::now();
    Rc::new(Run {
        protocol: "http",
        peer: Peer::Http(gateway),
        source: Source::pool(packer.pool(1, (0, 0), 0, 1)),
        numbers: RefCell::default(),
        begin,
        start: begin + Duration::from_millis(5),
        end: None,
        most: Some(most),
        stop: CancellationToken::new(),
        stopped: Cell::new(None),
    })
}

/// Lets a thousand requests per second be due, until all have ended. When the last one
/// had begun, and how many were open then.
async fn open_loop(run: &Rc<Run>, held_up: Duration, most_open: usize) -> (Duration, u64) {
    let load = async {
        // Nothing else runs meanwhile.
        tokio::time::advance(held_up).await;
        let (schedule, tracker) = (Schedule::new(1000.0, Arrivals::Even, 0), TaskTracker::new());
        run.clone().when_due(schedule, Timer::Coarse, most_open, tracker.clone()).await;
        let begun = (run.begin.elapsed(), run.in_flight());
        tracker.close();
        tracker.wait().await;
        begun
    };
    LocalSet::new().run_until(load).await
}

#[tokio::test(start_paused = true)]
async fn open_loop_keeps_its_rate_up_to_the_open_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let run = silence(&listener, 50).await;
    let (took, open) = open_loop(&run, Duration::ZERO, 15).await;
    // The last is due after the first 5, which are not measured, and 49 more.
    assert_eq!((took, open), (Duration::from_millis(55), 15));
    let numbers = run.numbers.take();
    assert_eq!((numbers.begun, numbers.due, numbers.completed, numbers.failed), (55, 50, 0, 50));
    let errors = [("not-sent".to_owned(), 40), ("timeout".to_owned(), 10)];
    assert_eq!(numbers.errors, errors.into());
    assert_eq!((numbers.late.count(), numbers.late_requests), (10, 0));
}

#[tokio::test(start_paused = true)]
async fn delayed_generator_reports_late_requests() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let run = silence(&listener, 50).await;
    open_loop(&run, Duration::from_millis(30), 100).await;
    let numbers = run.numbers.take();
    assert_eq!((numbers.due, numbers.late.count()), (50, 50));
    // Those that were due from 5 to 28 ms after the start began 2 to 25 ms late.
    assert_eq!((numbers.late_requests, numbers.late.max()), (24, Duration::from_millis(25)));
}

#[tokio::test]
async fn stopped_closed_loop_begins_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let run = silence(&listener, 50).await;
    run.stop.cancel();
    run.clone().one_at_a_time().await;
    assert_eq!(run.numbers.borrow().begun, 0);
}

#[tokio::test(start_paused = true)]
async fn due_request_never_sent_is_a_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let run = silence(&listener, 1000).await;
    run.stopped.set(Some(run.begin + Duration::from_millis(130)));
    run.stop.cancel();
    open_loop(&run, Duration::from_millis(130), 100).await;
    let numbers = run.numbers.take();
    // One each millisecond, of which the first 5 are not measured. What was due in the last 5 is sent.
    assert_eq!((numbers.begun, numbers.due, numbers.failed), (130, 125, 125));
    assert_eq!(numbers.errors, [("not-sent".to_owned(), 120), ("timeout".to_owned(), 5)].into());
    assert_eq!(numbers.late.count(), 5);
}

#[tokio::test(start_paused = true)]
async fn no_request_is_due_after_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut run = silence(&listener, 1000).await;
    let end = run.begin + Duration::from_millis(30);
    Rc::get_mut(&mut run).unwrap().end = Some(end);
    // The whole process was held up at the end.
    run.stopped.set(Some(end + Duration::from_millis(100)));
    run.stop.cancel();
    open_loop(&run, Duration::from_millis(130), 100).await;
    let numbers = run.numbers.take();
    assert_eq!((numbers.begun, numbers.due), (30, 25));
    assert_eq!(numbers.errors, [("timeout".to_owned(), 25)].into(), "every one was sent");
}
