//! Batches in MessagePack.

use std::sync::Arc;

use bytes::Bytes;
use rmp::encode::{
    ValueWriteError, write_array_len, write_f64, write_map_len, write_nil, write_str, write_uint,
};

use super::Form;

type Written = Result<(), ValueWriteError>;

/// An event.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    /// Blocks that follow each other are there.
    Stored { hashes: Vec<u64>, parent: Option<u64>, tokens: Vec<u32>, adapter: Option<Arc<str>> },
    /// Blocks are there no more.
    Removed { hashes: Vec<u64> },
}

/// A batch with the time at which it was made, in seconds since 1970. Blocks have `block_size` tokens.
pub(super) fn batch(form: Form, time: f64, events: &[Event], block_size: u32) -> Bytes {
    let mut out = Vec::new();
    // Writing to memory can't fail.
    let _ = write_batch(&mut out, form, time, events, block_size);
    out.into()
}

fn write_batch(out: &mut Vec<u8>, form: Form, time: f64, events: &[Event], block_size: u32) -> Written {
    let mut fields = Fields::begin(out, form, 3)?;
    fields.name("ts")?;
    write_f64(fields.out, time)?;
    fields.name("events")?;
    write_array_len(fields.out, len(events))?;
    for event in events {
        write_event(fields.out, form, event, block_size)?;
    }
    fields.name("data_parallel_rank")?;
    write_nil(fields.out).map_err(ValueWriteError::InvalidMarkerWrite)
}

fn write_event(out: &mut Vec<u8>, form: Form, event: &Event, block_size: u32) -> Written {
    match event {
        Event::Stored { hashes, parent, tokens, adapter } => {
            let mut fields = Fields::begin(out, form, 8)?;
            fields.text("type", Some("BlockStored"))?;
            fields.numbers("block_hashes", hashes.iter().copied())?;
            fields.number("parent_block_hash", *parent)?;
            fields.numbers("token_ids", tokens.iter().copied().map(u64::from))?;
            fields.number("block_size", Some(block_size.into()))?;
            fields.number("lora_id", adapter.as_ref().map(|_| 1))?;
            fields.text("medium", Some("GPU"))?;
            fields.text("lora_name", adapter.as_deref())
        }
        Event::Removed { hashes } => {
            let mut fields = Fields::begin(out, form, 3)?;
            fields.text("type", Some("BlockRemoved"))?;
            fields.numbers("block_hashes", hashes.iter().copied())?;
            fields.text("medium", Some("GPU"))
        }
    }
}

/// Fields in either form.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    form: Form,
}

impl<'a> Fields<'a> {
    fn begin(out: &'a mut Vec<u8>, form: Form, count: u32) -> Result<Self, ValueWriteError> {
        match form {
            Form::Array => write_array_len(out, count)?,
            Form::Map => write_map_len(out, count)?,
        };
        Ok(Self { out, form })
    }

    fn name(&mut self, name: &str) -> Written {
        if self.form == Form::Map { write_str(self.out, name) } else { Ok(()) }
    }

    fn text(&mut self, name: &str, text: Option<&str>) -> Written {
        self.name(name)?;
        match text {
            Some(text) => write_str(self.out, text),
            None => write_nil(self.out).map_err(ValueWriteError::InvalidMarkerWrite),
        }
    }

    fn number(&mut self, name: &str, number: Option<u64>) -> Written {
        self.name(name)?;
        match number {
            Some(number) => write_uint(self.out, number).map(|_| ()),
            None => write_nil(self.out).map_err(ValueWriteError::InvalidMarkerWrite),
        }
    }

    fn numbers(&mut self, name: &str, numbers: impl ExactSizeIterator<Item = u64>) -> Written {
        self.name(name)?;
        write_array_len(self.out, u32::try_from(numbers.len()).unwrap_or(u32::MAX))?;
        numbers.into_iter().try_for_each(|number| write_uint(self.out, number).map(|_| ()))
    }
}

fn len<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use usher_core::kv_events::{Batch, Dialect, Event as Read};

    use super::*;

    #[test]
    fn both_encodings_are_equivalent() {
        let stored = Event::Stored {
            hashes: vec![u64::MAX, 2],
            parent: Some(7),
            tokens: vec![1, 70_000, 3, 4],
            adapter: Some("sql".into()),
        };
        let events = [stored, Event::Removed { hashes: vec![9] }];
        for form in [Form::Array, Form::Map] {
            let payload = batch(form, 1.5, &events, 2);
            let read = Batch::decode(&payload, Dialect::Vllm).unwrap();
            assert_eq!(read.timestamp(), Some(1.5));
            let kinds: Vec<_> = read.events().map(Result::unwrap).collect();
            assert!(matches!(kinds[..], [Read::Stored(_), Read::Removed(_)]), "{form:?}: {kinds:?}");
        }
    }
}
