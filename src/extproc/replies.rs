//! Replies of an exchange, in the order and in the sizes that a gateway takes.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::flow::Rejection;
use crate::request::Pieces;
use crate::schedule::Attribute;
use usher_wire::reply::{CHUNK_LIMIT, Reply, Route};

/// Replies that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Replies {
    ready: VecDeque<Reply>,
    /// Replies that wait for the one to the request's headers.
    early: VecDeque<Reply>,
}

impl Replies {
    /// The next one to send.
    pub(super) fn next(&mut self) -> Option<Reply> {
        self.ready.pop_front()
    }

    /// Adds one.
    pub(super) fn push(&mut self, reply: Reply) {
        self.ready.push_back(reply);
    }

    /// Adds one that is not sent before [`request_headers`](Self::request_headers).
    pub(super) fn push_after_headers(&mut self, reply: Reply) {
        self.early.push_back(reply);
    }

    /// Adds the reply to the request's headers, and what waited for it.
    pub(super) fn request_headers(&mut self, route: Route) {
        self.push(Reply::RequestHeaders(Box::new(route)));
        self.ready.append(&mut self.early);
    }

    /// Drops those that wait for a reply which will not come.
    pub(super) fn forget_early(&mut self) {
        self.early = VecDeque::new();
    }

    /// Adds a part of the request's body.
    pub(super) fn request_body(&mut self, pieces: impl IntoIterator<Item = Bytes>, end_of_stream: bool) {
        chunks(&mut self.ready, pieces, end_of_stream, request_chunk);
    }

    /// Adds a part of the request's body that is not sent before
    /// [`request_headers`](Self::request_headers), and before the trailers if they wait, too: then it
    /// is they that end it.
    pub(super) fn early_request_body(&mut self, pieces: impl IntoIterator<Item = Bytes>, is_last: bool) {
        let mut early = VecDeque::new();
        chunks(&mut early, pieces, is_last && self.early.is_empty(), request_chunk);
        early.append(&mut self.early);
        self.early = early;
    }

    /// Adds a part of the response's body. The last part carries the attributes for the gateway.
    pub(super) fn response_body(
        &mut self,
        pieces: impl IntoIterator<Item = Bytes>,
        end_of_stream: bool,
        of_response: Vec<Attribute>,
    ) {
        chunks(&mut self.ready, pieces, end_of_stream, |data, end_of_stream| Reply::ResponseBody {
            data,
            end_of_stream,
            attributes: Vec::new(),
        });
        if end_of_stream && let Some(Reply::ResponseBody { attributes, .. }) = self.ready.back_mut() {
            *attributes = of_response;
        }
    }

    /// Drops all that was not sent: this is said instead, and nothing follows.
    pub(super) fn immediate(&mut self, rejection: Rejection) {
        *self = Self::default();
        self.push(Reply::Immediate(rejection));
    }
}

fn request_chunk(data: Pieces, end_of_stream: bool) -> Reply {
    Reply::RequestBody { data, end_of_stream }
}

/// Adds a body, or a part of it, in chunks that a gateway takes. Nothing is added for an
/// empty one that doesn't end its body.
fn chunks(
    replies: &mut VecDeque<Reply>,
    pieces: impl IntoIterator<Item = Bytes>,
    end_of_stream: bool,
    reply: fn(Pieces, bool) -> Reply,
) {
    let mut chunk = Pieces::default();
    let mut room = CHUNK_LIMIT;
    for mut piece in pieces {
        while piece.len() > room {
            chunk.push(piece.split_to(room));
            replies.push_back(reply(std::mem::take(&mut chunk), false));
            room = CHUNK_LIMIT;
        }
        room -= piece.len();
        chunk.push(piece);
    }
    if !chunk.is_empty() || end_of_stream {
        replies.push_back(reply(chunk, end_of_stream));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Code;
    use proptest::prelude::*;

    fn all(mut replies: Replies) -> Vec<Reply> {
        std::iter::from_fn(|| replies.next()).collect()
    }

    #[test]
    fn early_replies_follow_the_headers() {
        let mut replies = Replies::default();
        replies.push_after_headers(Reply::RequestBodyAsIs);
        replies.push_after_headers(Reply::RequestTrailers);
        replies.push(Reply::ResponseHeaders(Vec::new()));
        assert_eq!(replies.next(), Some(Reply::ResponseHeaders(Vec::new())));
        assert_eq!(replies.next(), None);
        replies.request_headers(Route::default());
        replies.push(Reply::ResponseHeaders(Vec::new()));
        let headers = Reply::RequestHeaders(Box::default());
        let want =
            [headers, Reply::RequestBodyAsIs, Reply::RequestTrailers, Reply::ResponseHeaders(Vec::new())];
        assert_eq!(all(replies), want);
    }

    #[test]
    fn an_immediate_reply_is_the_only_one() {
        let mut replies = Replies::default();
        replies.push_after_headers(Reply::RequestBodyAsIs);
        replies.push(Reply::ResponseHeaders(Vec::new()));
        let rejection = Rejection::new(Code::BadRequest, "no");
        replies.immediate(rejection.clone());
        assert_eq!(all(replies), [Reply::Immediate(rejection)]);
    }

    proptest! {
        /// Bodies are neither lost nor copied, chunks are as large as they may be, and only the last one
        /// ends the body.
        #[test]
        fn bodies_are_split_into_bounded_chunks(
            lengths in prop::collection::vec(
                prop_oneof![Just(0), 1..100usize, CHUNK_LIMIT - 2..=CHUNK_LIMIT + 2, 1..3 * CHUNK_LIMIT],
                0..6,
            ),
            end in any::<bool>(),
        ) {
            let whole = Bytes::from(vec![0; lengths.iter().sum()]);
            let mut rest = whole.clone();
            let mut replies = Replies::default();
            replies.request_body(lengths.iter().map(|length| rest.split_to(*length)), end);
            let replies = all(replies);
            let mut sent = 0;
            for (index, reply) in replies.iter().enumerate() {
                let Reply::RequestBody { data, end_of_stream } = reply else { panic!("{reply:?}") };
                let is_last = index + 1 == replies.len();
                prop_assert_eq!(*end_of_stream, is_last && end);
                prop_assert!(is_last || data.len() == CHUNK_LIMIT, "{} bytes", data.len());
                for piece in data {
                    prop_assert_eq!(piece.as_ptr(), whole[sent..].as_ptr());
                    sent += piece.len();
                }
            }
            prop_assert_eq!(sent, whole.len());
            let chunks = whole.len().div_ceil(CHUNK_LIMIT);
            prop_assert_eq!(replies.len(), if end { chunks.max(1) } else { chunks });
        }
    }
}
