//! Incoming messages of a call: those of a stream, put together from the frames of the
//! connection.

use bytes::{Buf, Bytes};
use tonic::Status;

use usher_core::request::Body;

/// A message as it arrived.
#[derive(Debug)]
pub enum Payload {
    /// In one frame.
    One(Bytes),
    /// In several.
    Many(Body),
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::One(bytes)
    }
}

/// Frames in, messages out. Nothing is copied, but for messages in tiny frames.
#[derive(Debug)]
pub struct Inbox {
    /// Rest of the last frame.
    frame: Bytes,
    prefix: [u8; 5],
    /// Number of bytes of the prefix that have come.
    prefixed: usize,
    partial: Option<Box<Partial>>,
    limit: usize,
}

#[derive(Debug)]
struct Partial {
    /// Bytes that are missing.
    missing: usize,
    body: Body,
}

impl Inbox {
    /// For messages of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { frame: Bytes::new(), prefix: [0; 5], prefixed: 0, partial: None, limit }
    }

    /// Takes a frame. To be called when [`Inbox::next_message`] had nothing.
    pub fn push(&mut self, frame: Bytes) {
        debug_assert!(self.frame.is_empty(), "a frame was not read to its end");
        self.frame = frame;
    }

    /// The next message that is complete.
    ///
    /// # Errors
    /// `Status` if the message is compressed or too large.
    pub fn next_message(&mut self) -> Result<Option<Payload>, Status> {
        if self.partial.is_none() {
            while self.prefixed < self.prefix.len() {
                if self.frame.is_empty() {
                    return Ok(None);
                }
                self.prefix[self.prefixed] = self.frame.get_u8();
                self.prefixed += 1;
            }
            self.prefixed = 0;
            let length = self.length()?;
            if self.frame.len() >= length {
                return Ok(Some(Payload::One(self.frame.split_to(length))));
            }
            self.partial = Some(Box::new(Partial { missing: length, body: Body::default() }));
        }
        let Some(partial) = &mut self.partial else { return Ok(None) };
        let part = self.frame.split_to(self.frame.len().min(partial.missing));
        partial.missing -= part.len();
        partial.body.push(part);
        if partial.missing > 0 {
            return Ok(None);
        }
        let body = self.partial.take().map(|partial| partial.body);
        Ok(body.map(|mut body| {
            body.seal();
            Payload::Many(body)
        }))
    }

    /// Drops what there is of a message.
    pub fn clear(&mut self) {
        (self.frame, self.prefixed, self.partial) = (Bytes::new(), 0, None);
    }

    /// Bytes of a message that is not complete.
    pub fn held(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.body.len())
    }

    /// Returns `true` if a message has begun and not ended.
    pub fn is_within_message(&self) -> bool {
        self.partial.is_some() || self.prefixed > 0
    }

    fn length(&self) -> Result<usize, Status> {
        let [compressed, length @ ..] = self.prefix;
        if compressed != 0 {
            return Err(Status::unimplemented("compressed messages are not supported"));
        }
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > self.limit {
            let limit = self.limit;
            return Err(Status::resource_exhausted(format!(
                "a message of {length} bytes is larger than {limit} (--grpc-max-recv-msg-size)"
            )));
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use usher_core::request::Span;

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        let frame = |message: &Vec<u8>| [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
        messages.iter().flat_map(frame).collect()
    }

    fn bytes(payload: Payload) -> Vec<u8> {
        match payload {
            Payload::One(bytes) => bytes.to_vec(),
            Payload::Many(body) => body.bytes(Span { start: 0, end: body.len() }).into_owned(),
        }
    }

    proptest! {
        #[test]
        fn messages_are_read_at_any_split(
            lengths in prop::collection::vec(0usize..5000, 0..6),
            cuts in prop::collection::vec(1usize..3000, 1..9),
        ) {
            let messages: Vec<Vec<u8>> =
                lengths.iter().enumerate().map(|(index, length)| vec![index as u8; *length]).collect();
            let mut wire = Bytes::from(framed(&messages));
            let (mut inbox, mut got) = (Inbox::new(5000), Vec::new());
            for cut in cuts.iter().cycle() {
                if wire.is_empty() {
                    break;
                }
                inbox.push(wire.split_to(wire.len().min(*cut)));
                while let Some(payload) = inbox.next_message().unwrap() {
                    got.push(bytes(payload));
                }
            }
            prop_assert_eq!(got, messages);
            prop_assert!(!inbox.is_within_message());
        }
    }

    #[test]
    fn invalid_message_is_refused_at_its_prefix() {
        // prefix, code
        let table = [
            ([1, 0, 0, 0, 1], tonic::Code::Unimplemented),
            ([0, 0, 0, 0, 9], tonic::Code::ResourceExhausted),
        ];
        for (prefix, code) in table {
            let mut inbox = Inbox::new(8);
            inbox.push(Bytes::copy_from_slice(&prefix));
            assert_eq!(inbox.next_message().unwrap_err().code(), code);
        }
    }

    #[test]
    fn message_in_one_frame_is_not_copied() {
        let frame = Bytes::from(framed(&[b"hello".to_vec()]));
        let mut inbox = Inbox::new(8);
        inbox.push(frame.clone());
        let Some(Payload::One(message)) = inbox.next_message().unwrap() else { panic!("not in one piece") };
        assert_eq!(message.as_ptr(), frame[5..].as_ptr());
    }
}
