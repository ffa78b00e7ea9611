//! Frames of ZeroMQ messages: live events, requests to replay, and replies to these.

/// Frames of a live message: topic, sequence number, payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Source that the topic names.
    pub topic: Topic<'a>,
    /// Number of the batch. An engine counts from 0 since it started.
    pub sequence: u64,
    /// The batch. See [`Batch`](super::Batch).
    pub payload: &'a [u8],
}

/// Bytes of a topic at most: names of a pod and of a model.
const MAX_TOPIC: usize = 1024;

impl<'a> Message<'a> {
    /// `None` if there are not three frames, the first has more than 1024 bytes, or the second is no number of eight bytes.
    pub fn read(frames: &[&'a [u8]]) -> Option<Self> {
        let [topic, sequence, payload] = frames else { return None };
        if topic.len() > MAX_TOPIC {
            return None;
        }
        Some(Self { topic: Topic::read(topic), sequence: number(sequence)?, payload })
    }
}

/// Topic of a message: `kv@POD@MODEL`, or whatever the engine was given. vLLM's default is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Topic<'a> {
    /// Engine that sent it, `IP:port` where it is to be found among endpoints. Empty if unknown.
    pub pod: &'a [u8],
    /// Model that the engine serves; may have an `@` in it. Empty if unknown.
    pub model: &'a [u8],
}

impl<'a> Topic<'a> {
    /// A topic of another form names a pod only.
    pub fn read(topic: &'a [u8]) -> Self {
        let mut parts = topic.splitn(3, |byte| *byte == b'@');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(_), Some(pod), Some(model)) => Self { pod, model },
            _ => Self { pod: topic, model: b"" },
        }
    }
}

/// One reply to a request to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A batch that was sent before.
    Batch {
        /// Sequence number of the batch.
        sequence: u64,
        /// The batch. See [`Batch`](super::Batch).
        payload: &'a [u8],
    },
    /// End of the replay.
    End,
}

/// Number of the reply that ends a replay: -1.
const END: u64 = u64::MAX;

impl<'a> Reply<'a> {
    /// Reads the frames that a DEALER socket receives: an empty one, then topic, number and payload (vLLM since
    /// vllm#45177) or number and payload (before, and SGLang). `None` if they are neither, or the topic has more than
    /// 1024 bytes.
    pub fn read(frames: &[&'a [u8]]) -> Option<Self> {
        let (topic, sequence, payload) = match frames {
            [[], sequence, payload] => (&[] as &[u8], sequence, payload),
            [[], topic, sequence, payload] => (*topic, sequence, payload),
            _ => return None,
        };
        if topic.len() > MAX_TOPIC {
            return None;
        }
        Some(match number(sequence)? {
            END => Self::End,
            // The numbers of batches are small; an end may be marked by an empty payload alone.
            _ if payload.is_empty() => Self::End,
            sequence => Self::Batch { sequence, payload },
        })
    }
}

/// Frames that ask an engine's ROUTER socket, from a DEALER, to replay all batches from this number on.
pub fn replay_request(from: u64) -> [Vec<u8>; 2] {
    [Vec::new(), from.to_be_bytes().to_vec()]
}

fn number(frame: &[u8]) -> Option<u64> {
    frame.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_messages_have_three_frames() {
        let frames: [&[u8]; 3] = [b"kv@10.0.0.1:8000@org/model", &7u64.to_be_bytes(), b"payload"];
        let topic = Topic { pod: b"10.0.0.1:8000", model: b"org/model" };
        assert_eq!(Message::read(&frames), Some(Message { topic, sequence: 7, payload: b"payload" }));
        assert_eq!(Message::read(&frames[..2]), None);
        assert_eq!(Message::read(&[frames[0], frames[1], frames[2], b""]), None);
        assert_eq!(Message::read(&[frames[0], &[0; 7], frames[2]]), None);
        assert_eq!(Message::read(&[]), None);
    }

    #[test]
    fn long_topics_are_refused() {
        let number = &7u64.to_be_bytes()[..];
        for (len, is_read) in [(MAX_TOPIC, true), (MAX_TOPIC + 1, false)] {
            let topic = vec![b'a'; len];
            assert_eq!(Message::read(&[&topic, number, b"x"]).is_some(), is_read, "{len}");
            assert_eq!(Reply::read(&[b"", &topic, number, b"x"]).is_some(), is_read, "{len}");
        }
    }

    #[test]
    fn models_may_have_an_at_sign() {
        for (topic, pod, model) in [
            ("kv@pod@model", "pod", "model"),
            ("kv@pod@org/model@v2@x", "pod", "org/model@v2@x"),
            ("kv@pod@", "pod", ""),
            ("", "", ""),
            ("kv@pod", "kv@pod", ""),
            ("events", "events", ""),
        ] {
            let read = Topic::read(topic.as_bytes());
            assert_eq!(read, Topic { pod: pod.as_bytes(), model: model.as_bytes() }, "{topic}");
        }
    }

    #[test]
    fn replies_are_read_in_both_framings() {
        let (five, end): (&[u8], &[u8]) = (&5u64.to_be_bytes(), &(-1i64).to_be_bytes());
        let batch = Some(Reply::Batch { sequence: 5, payload: b"x" });
        for (frames, reply) in [
            (&[b"", five, b"x"] as &[&[u8]], batch),
            (&[b"", b"topic", five, b"x"], batch),
            (&[b"", b"", five, b"x"], batch),
            (&[b"", end, b""], Some(Reply::End)),
            (&[b"", b"", end, b""], Some(Reply::End)),
            (&[b"", b"topic", end, b""], Some(Reply::End)),
            (&[b"", five, b""], Some(Reply::End)),
            (&[five, b"x"], None),
            (&[b"x", five, b"x"], None),
            (&[b"", b"1234", b"x"], None),
            (&[b""], None),
            (&[], None),
        ] {
            assert_eq!(Reply::read(frames), reply, "{frames:?}");
        }
    }

    #[test]
    fn a_request_has_an_empty_frame_and_the_number() {
        assert_eq!(replay_request(258), [vec![], vec![0, 0, 0, 0, 0, 0, 1, 2]]);
    }
}
