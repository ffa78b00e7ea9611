//! Requests of one endpoint that wait for the first byte of their response.

use super::first_byte::{FirstBytes, RequestClass, SIZES, UsualTimes};

/// First bytes that are kept until they are learned from.
const MOST_ANSWERED: usize = 64;
/// Requests whose clients went away that are kept until they are judged.
const MOST_ABORTED: usize = 16;

/// Pages in a row that have to miss requests: one alone misses those on their way.
const PAGES: usize = 2;

/// Times that an endpoint may take as long from one first byte to the next as its requests
/// usually take, shared among them: where they come at random, one pause in fifty is longer.
const SILENCE: f64 = 4.0;

/// Requests that wait for a first byte, and signs that their endpoint lives.
#[derive(Debug, Default)]
pub(super) struct Pending {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// First bytes since the last look, with their times in milliseconds.
    answered: Vec<(RequestClass, u64)>,
    /// Requests whose clients went away since the last look.
    aborted: Vec<Aborted>,
    /// Time of the last activity.
    heard_ms: u64,
    /// Time of the last first byte.
    first_byte_ms: u64,
    /// Readings of the last page.
    page: Page,
    /// Requests that the last pages should show and don't, page by page.
    missing: [u64; PAGES],
    /// Requests that have waited for long, with no first byte from the endpoint since.
    overdue: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// 0: free.
    sent_ms: u64,
    class: RequestClass,
    /// `true` if it counts as failed.
    failed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Aborted {
    sent_ms: u64,
    until_ms: u64,
    class: RequestClass,
}

/// Readings of a page of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Page {
    pub(super) waiting: f64,
    pub(super) running: f64,
    pub(super) kv_usage: f64,
}

/// Longest time that requests may wait for a first byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound<'a> {
    pub(super) usual: &'a UsualTimes,
    /// The shortest bound in milliseconds.
    pub(super) floor_ms: f64,
    /// Time of the last activity of another endpoint: where all are silent, none is slower
    /// than its fellows.
    pub(super) others_heard_ms: u64,
}

impl Pending {
    pub(super) fn insert(&mut self, class: RequestClass, sent_ms: u64) -> u32 {
        let slot = Slot { sent_ms, class, failed: false };
        if let Some(index) = self.free.pop()
            && let Some(place) = self.slots.get_mut(index as usize)
        {
            *place = slot;
            return index;
        }
        self.slots.push(slot);
        (self.slots.len() - 1) as u32
    }

    fn remove(&mut self, index: u32) -> Option<Slot> {
        let place = self.slots.get_mut(index as usize).filter(|slot| slot.sent_ms != 0)?;
        let slot = *place;
        place.sent_ms = 0;
        self.free.push(index);
        Some(slot)
    }

    /// The first byte of the response to a request came. Returns whether the request counts as failed.
    pub(super) fn came(&mut self, index: u32, now_ms: u64) -> bool {
        self.first_byte_ms = now_ms;
        let Some(slot) = self.remove(index) else { return false };
        if self.answered.len() < MOST_ANSWERED {
            self.answered.push((slot.class, now_ms.saturating_sub(slot.sent_ms)));
        }
        slot.failed
    }

    /// A request waits no longer, and that says nothing. Returns whether it counts as failed.
    pub(super) fn forget(&mut self, index: u32) -> bool {
        self.remove(index).is_some_and(|slot| slot.failed)
    }

    /// The client of a request went away.
    pub(super) fn abort(&mut self, index: u32, until_ms: u64) {
        let Some(Slot { sent_ms, class, failed: false }) = self.remove(index) else { return };
        if self.aborted.len() < MOST_ABORTED {
            self.aborted.push(Aborted { sent_ms, until_ms, class });
        }
    }

    /// Requests that wait.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Notes how many requests a page doesn't show of those that it should show: some of
    /// those that wait for a first byte.
    pub(super) fn note_missing(&mut self, requests: u64) {
        self.missing.rotate_right(1);
        self.missing[0] = requests.min(self.len() as u64);
    }

    /// Requests that nothing shows but their waiting, and those of them that have waited for long.
    pub(super) fn unreported(&self) -> (u64, u64) {
        (self.missing().max(self.overdue), self.overdue)
    }

    /// Counts those that wait for longer than nearly all like them. As others may be in front,
    /// the endpoint must have begun no response since they were sent. Where it has begun none for
    /// several times as long as so many requests have between two, those count that its pages miss.
    pub(super) fn count_overdue(&mut self, usual: &UsualTimes, now_ms: u64) {
        let first_byte_ms = self.first_byte_ms;
        let waits = |slot: &Slot| now_ms.saturating_sub(slot.sent_ms.max(first_byte_ms)) as f64;
        let (mut overdue, mut longest, mut silence) = (0, 0f64, 0f64);
        if self.len() > 0 {
            for slot in self.slots.iter().filter(|slot| slot.sent_ms != 0) {
                let usual_ms = usual.ms(slot.class).unwrap_or(f64::INFINITY);
                overdue += u64::from(waits(slot) > usual_ms);
                (longest, silence) = (longest.max(usual_ms), silence.max(waits(slot)));
            }
        }
        let is_silent = silence * self.len() as f64 > SILENCE * longest;
        self.overdue = if is_silent { overdue.max(self.missing()) } else { overdue };
    }

    /// Requests that the last pages miss, each of them.
    fn missing(&self) -> u64 {
        self.missing.into_iter().min().unwrap_or(0)
    }

    /// Compares a page with the one before. Returns whether work was done in between.
    pub(super) fn page(&mut self, page: Page) -> bool {
        let before = std::mem::replace(&mut self.page, page);
        // A queue that grows shows that requests arrive, not that they are worked on.
        page.waiting < before.waiting || page.running != before.running || page.kv_usage != before.kv_usage
    }

    /// Learns from the first bytes since the last look. Returns when there was a sign of
    /// life last.
    pub(super) fn listen(&mut self, lives: bool, times: &mut FirstBytes, now_ms: u64) -> u64 {
        for (class, ms) in self.answered.drain(..) {
            times.learn(class, ms);
        }
        if lives {
            self.heard_ms = now_ms;
        }
        self.heard_ms
    }

    /// Requests that failed since the last look, by when they were sent: their endpoint has
    /// given no sign of life for longer than they should have taken.
    pub(super) fn failures(&mut self, bound: &Bound<'_>, now_ms: u64) -> Vec<u64> {
        let heard_ms = self.heard_ms;
        let mut failed = Vec::new();
        if self.aborted.is_empty() && self.len() == 0 {
            return failed;
        }
        // Of the requests of each size that wait, and of all larger ones, the longest usual time.
        // Media stand behind all sizes; as long as nobody knows what they take it may be anything.
        let mut longest = [0f64; SIZES + 1];
        for slot in self.slots.iter().filter(|slot| slot.sent_ms != 0) {
            let has_media = slot.class.has_media();
            let unknown = if has_media { f64::INFINITY } else { 0.0 };
            let most = &mut longest[if has_media { SIZES } else { slot.class.size() }];
            *most = most.max(bound.usual.ms(slot.class).unwrap_or(unknown));
        }
        for size in (0..SIZES).rev() {
            longest[size] = longest[size].max(longest[size + 1]);
        }
        // It may wait for a larger prompt, or for media.
        let usual = |class: RequestClass| {
            let own = bound.usual.ms(class)?;
            Some(own.max(longest[class.size() + 1]))
        };
        let silent = |sent_ms: u64, until_ms: u64| {
            let since = heard_ms.max(sent_ms);
            let ms = until_ms.saturating_sub(since) as f64;
            (bound.others_heard_ms > since).then_some(ms)
        };
        for aborted in std::mem::take(&mut self.aborted) {
            let Aborted { sent_ms, until_ms, class } = aborted;
            let Some(ms) = silent(sent_ms, until_ms) else { continue };
            // Clients that hurry are no reason to doubt an endpoint.
            if usual(class).is_some_and(|usual| ms >= usual.max(bound.floor_ms / 4.0)) {
                failed.push(sent_ms);
            }
        }
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots.get(index).filter(|slot| slot.sent_ms != 0 && !slot.failed) else {
                continue;
            };
            let Some(ms) = silent(slot.sent_ms, now_ms).filter(|ms| *ms >= bound.floor_ms) else { continue };
            if usual(slot.class).is_some_and(|usual| ms >= 2.0 * usual) {
                failed.push(slot.sent_ms);
                if let Some(slot) = self.slots.get_mut(index) {
                    slot.failed = true;
                }
            }
        }
        failed
    }
}
