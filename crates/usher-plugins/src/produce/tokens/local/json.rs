//! JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it, which chat templates call `tojson`.

use std::io::{self, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, State, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::limited::{Limited, MAX_TEXT};

/// Bytes of JSON that a rendering has made.
#[derive(Default)]
struct Made(usize);

/// The filter `tojson`: `indent` is spaces of a level; `ensure_ascii`, `separators` and `sort_keys` have to be
/// what they are by default. A template makes [`MAX_TEXT`] of JSON at most.
#[expect(clippy::needless_pass_by_value, reason = "minijinja gives it away")]
pub(super) fn filter(state: &mut State<'_, '_>, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let is_other =
        |key: &str| options.get::<Option<Value>>(key).is_ok_and(|v| v.is_some_and(|v| v.is_true()));
    if ["ensure_ascii", "separators", "sort_keys"].into_iter().any(is_other) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson takes indent only"));
    }
    options.assert_all_used()?;
    let Made(made) = state.get_or_insert_extension(Made::default());
    let text = dumps(value, indent, MAX_TEXT - *made)?;
    *made += text.len();
    Ok(text.into())
}

/// JSON with `, ` and `: `, or with an item a line, of so many bytes at most.
fn dumps(value: &Value, indent: Option<usize>, limit: usize) -> Result<String, Error> {
    let mut out = Limited::new(limit);
    let layout = Layout { indent, depth: 0, is_empty: true };
    let written = value.serialize(&mut Serializer::with_formatter(&mut out, layout));
    let is_over = out.is_over();
    let text = out.into_text().filter(|_| written.is_ok());
    text.ok_or_else(|| match is_over {
        true => Error::new(ErrorKind::WriteFailure, "too much JSON"),
        false => Error::new(ErrorKind::BadSerialization, "no JSON"),
    })
}

struct Layout {
    indent: Option<usize>,
    depth: usize,
    is_empty: bool,
}

impl Layout {
    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..indent * self.depth).try_for_each(|_| writer.write_all(b" "))
    }

    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !std::mem::take(&mut self.is_empty) {
            self.line(writer)?;
        }
        writer.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.is_empty = false;
        if !first {
            writer.write_all(if self.indent.is_some() { b"," } else { b", " })?;
        }
        self.line(writer)
    }
}

impl Formatter for Layout {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(repr(value).as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_empty = false;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_empty = false;
        Ok(())
    }
}

/// A number as Python's `repr` writes it: without an exponent from 1e-4 to below 1e16.
fn repr(value: f64) -> String {
    let short = format!("{value:e}");
    let (mantissa, exponent) = short.split_once('e').unwrap_or((&short, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 || (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn json_output_matches_python() {
        let table = [
            (r#"{"b":[1,-2.50,true,null],"a":{}}"#, r#"{"b": [1, -2.5, true, null], "a": {}}"#),
            (r#"["<&'>\"\\\n\t\u0001\u007f é\ud83d\ude00"]"#, "[\"<&'>\\\"\\\\\\n\\t\\u0001\u{7f} é😀\"]"),
            (
                "[1e22,1e16,1e15,123456789012345680.0,0.0001,0.00001,1.0,0.0]",
                "[1e+22, 1e+16, 1000000000000000.0, 1.2345678901234568e+17, 0.0001, 1e-05, 1.0, 0.0]",
            ),
            ("[18446744073709551615,-9223372036854775808]", "[18446744073709551615, -9223372036854775808]"),
        ];
        for (text, expected) in table {
            assert_eq!(dumps(&parse(text), None, MAX_TEXT).unwrap(), expected);
        }
        let indented = dumps(&parse(r#"{"a":[1,{"b":[]}],"c":{}}"#), Some(2), MAX_TEXT).unwrap();
        assert_eq!(indented, "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ],\n  \"c\": {}\n}");
    }
}
