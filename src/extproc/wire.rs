//! The protobuf wire format, as far as walking and writing messages by hand needs it.
//!
//! Header maps and metadata are the bulk of what a gateway sends, and we read
//! two or three fields of them. Walking their bytes finds those and makes
//! nothing of the rest.

use bytes::{BufMut, Bytes, BytesMut};

/// A field of a message: its number and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) number: u32,
    pub(crate) value: Value,
}

/// The value of a field. Fixed-width values are skipped: nothing here has any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Varint(u64),
    Bytes(Bytes),
    Fixed,
}

/// The bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The fields of an encoded message, in order.
pub(crate) struct Fields {
    rest: Bytes,
}

impl Fields {
    pub(crate) fn of(message: &Bytes) -> Self {
        Self { rest: message.clone() }
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for (index, &byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.skip(index + 1)?;
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn skip(&mut self, count: usize) -> Result<Bytes, Malformed> {
        if count > self.rest.len() {
            return Err(Malformed);
        }
        Ok(self.rest.split_to(count))
    }

    fn field(&mut self) -> Result<Field, Malformed> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| Malformed)?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.skip(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Value::Bytes(self.skip(length)?)
            }
            5 => self.skip(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed),
        };
        Ok(Field { number, value })
    }
}

impl Iterator for Fields {
    type Item = Result<Field, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = Bytes::new();
        }
        Some(field)
    }
}

/// The length-delimited fields with the given numbers, the last of each; empty
/// where there is none.
pub(crate) fn pick<const N: usize>(message: &Bytes, numbers: [u32; N]) -> Result<[Bytes; N], Malformed> {
    let mut found = std::array::from_fn(|_| Bytes::new());
    for field in Fields::of(message) {
        let field = field?;
        if let (Some(at), Value::Bytes(bytes)) =
            (numbers.iter().position(|n| *n == field.number), field.value)
        {
            found[at] = bytes;
        }
    }
    Ok(found)
}

/// Length of a varint.
fn varint_len(value: usize) -> usize {
    (usize::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Length of a length-delimited field with a number below 16.
pub(crate) fn field_len(content: usize) -> usize {
    1 + varint_len(content) + content
}

/// Writes the head of a length-delimited field; the content comes next.
pub(crate) fn put_head(out: &mut BytesMut, number: u8, content: usize) {
    out.put_u8(number << 3 | 2);
    let mut rest = content;
    while rest >= 0x80 {
        out.put_u8((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

/// Writes a length-delimited field.
pub(crate) fn put_bytes(out: &mut BytesMut, number: u8, content: &[u8]) {
    put_head(out, number, content.len());
    out.put_slice(content);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back(parts in prop::collection::vec((1u8..16, prop::collection::vec(any::<u8>(), 0..300)), 0..6)) {
            let mut out = BytesMut::new();
            let mut length = 0;
            for (number, content) in &parts {
                put_bytes(&mut out, *number, content);
                length += field_len(content.len());
            }
            prop_assert_eq!(out.len(), length);
            let fields: Vec<_> = Fields::of(&out.freeze()).map(Result::unwrap).collect();
            let want: Vec<_> = parts
                .into_iter()
                .map(|(number, content)| Field { number: number.into(), value: Value::Bytes(content.into()) })
                .collect();
            prop_assert_eq!(fields, want);
        }

        #[test]
        fn random_bytes_end_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let bytes = Bytes::from(bytes);
            prop_assert!(Fields::of(&bytes).count() <= bytes.len());
        }
    }
}
