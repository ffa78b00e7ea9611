//! Chat templates, with what `apply_chat_template` of Hugging Face's transformers gives them.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::json;
use super::limited::{Limited, MAX_TEXT};

const DEFAULT: &str = "default";
const WITH_TOOLS: &str = "tool_use";

/// The templates of a model, compiled.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    /// `true` if there is one of its own for requests with tools.
    with_tools: bool,
    /// Type of a message's content.
    pub(super) format: ContentFormat,
}

/// Type of a message's content as a template reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentFormat {
    /// A string.
    Text,
    /// A list of parts, each with a type.
    Parts,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("format", &self.format).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles templates by name: one, or `default` and `tool_use`. Without a format it is what the template
    /// looks as if it expects.
    ///
    /// # Errors
    /// A message with the line if the template can't be parsed.
    pub(super) fn compile(
        templates: &[(String, String)],
        format: Option<ContentFormat>,
    ) -> Result<Self, String> {
        let mut environment = environment().map_err(|error| error.to_string())?;
        let default = templates.iter().find(|(name, _)| name == DEFAULT).or(templates.first());
        let (_, source) = default.ok_or("there is none")?;
        let with_tools = templates.iter().find(|(name, _)| name == WITH_TOOLS);
        for (name, source) in [Some((DEFAULT, source)), with_tools.map(|(_, source)| (WITH_TOOLS, source))]
            .into_iter()
            .flatten()
        {
            environment.add_template_owned(name, without_generation(source)).map_err(|error| {
                let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
                format!("line {}: {detail}", error.line().unwrap_or(0))
            })?;
        }
        let format = format.unwrap_or_else(|| {
            if loops_over_content(source) { ContentFormat::Parts } else { ContentFormat::Text }
        });
        Ok(Self { environment, with_tools: with_tools.is_some(), format })
    }

    /// The text of a chat.
    ///
    /// # Errors
    /// `TemplateFailure` if the template refuses the chat, or its output is too long. The error has the
    /// position, and no text of the chat.
    pub(super) fn render(&self, context: Value, has_tools: bool) -> Result<String, TemplateFailure> {
        let name = if has_tools && self.with_tools { WITH_TOOLS } else { DEFAULT };
        let mut out = Limited::new(MAX_TEXT);
        let template = self.environment.get_template(name);
        let rendered = template.and_then(|template| template.render_captured_to(context, &mut out).map(drop));
        match rendered {
            Ok(()) => out.into_text().ok_or(TemplateFailure::TooLong),
            Err(error) if error.kind() == ErrorKind::WriteFailure => Err(TemplateFailure::TooLong),
            Err(error) => {
                Err(TemplateFailure::Refused { line: error.line().unwrap_or(0), kind: error.kind() })
            }
        }
    }
}

/// Error of a template that makes no text. Its own message might quote the chat.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TemplateFailure {
    /// Line and kind of the error that a template ended with.
    Refused { line: usize, kind: ErrorKind },
    /// The text, or the JSON in it, is longer than [`MAX_TEXT`].
    TooLong,
}

impl fmt::Display for TemplateFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { line, kind } => {
                write!(f, "the chat template refuses the chat in line {line}: {kind}")
            }
            Self::TooLong => {
                write!(f, "the chat template makes more than {} MiB of the chat", MAX_TEXT >> 20)
            }
        }
    }
}

fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.add_filter("tojson", json::filter);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        strftime(&format, now.as_secs())
    });
    Ok(environment)
}

/// Python's `strftime` for a time in UTC, with the directives for dates and times that templates use.
fn strftime(format: &str, unix: u64) -> Result<String, Error> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let days = unix / 86_400;
    // "civil_from_days" of Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", for days after 1970.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let name = |names: &[&'static str], index: u64| names.get(index as usize).copied().unwrap_or_default();
    let (month_name, day_name) = (name(&MONTHS, month - 1), name(&DAYS, days % 7));
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            text.push(char);
            continue;
        }
        match chars.next() {
            Some('d') => text.push_str(&format!("{day:02}")),
            Some('m') => text.push_str(&format!("{month:02}")),
            Some('Y') => text.push_str(&year.to_string()),
            Some('y') => text.push_str(&format!("{:02}", year % 100)),
            Some('b') => text.push_str(month_name.get(..3).unwrap_or_default()),
            Some('B') => text.push_str(month_name),
            Some('a') => text.push_str(day_name.get(..3).unwrap_or_default()),
            Some('A') => text.push_str(day_name),
            Some('H') => text.push_str(&format!("{:02}", unix / 3600 % 24)),
            Some('M') => text.push_str(&format!("{:02}", unix / 60 % 60)),
            Some('S') => text.push_str(&format!("{:02}", unix % 60)),
            Some('%') => text.push('%'),
            _ => return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: unknown directive")),
        }
    }
    Ok(text)
}

/// A template without transformers' own tags around what the assistant says, which print nothing.
fn without_generation(source: &str) -> String {
    let mut rest = source;
    let mut text = String::new();
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest.get(start..).and_then(|tag| tag.find("%}")) else { break };
        let tag = rest.get(start..start + len).unwrap_or_default();
        let word = tag.trim_start_matches(['{', '%', '-', '+']).trim_end_matches('-').trim();
        let instead = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => word,
        };
        text.push_str(rest.get(..start).unwrap_or_default());
        text.push_str(&if instead == word { tag.to_owned() } else { tag.replacen(word, instead, 1) });
        rest = rest.get(start + len..).unwrap_or_default();
    }
    text + rest
}

/// Returns `true` if a template looks at the parts of a message's content: it has a loop over `content`, or over
/// the attribute of that name.
fn loops_over_content(source: &str) -> bool {
    source.split("{%").skip(1).filter_map(|tag| tag.split("%}").next()).any(|tag| {
        let tag = tag.trim_matches(['-', '+', ' ', '\t', '\n']);
        let Some((_, over)) = tag.strip_prefix("for ").and_then(|tag| tag.split_once(" in ")) else {
            return false;
        };
        let over = over.split(" if ").next().unwrap_or_default().split('|').next().unwrap_or_default().trim();
        over == "content"
            || [".content", "['content']", "[\"content\"]"].iter().any(|end| over.ends_with(end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(source: &str) -> Result<ChatTemplate, String> {
        ChatTemplate::compile(&[("default".to_owned(), source.to_owned())], None)
    }

    #[test]
    fn date_formats_match_python() {
        let now = |format| strftime(format, 1_785_067_445).unwrap();
        assert_eq!(
            now("%d %b %Y %H:%M:%S %a %A %y-%m %B 100%%"),
            "26 Jul 2026 12:04:05 Sun Sunday 26-07 July 100%"
        );
        assert!(strftime("%Q", 0).is_err());
    }

    #[test]
    fn failures_quote_nothing_of_a_chat() {
        let template = compile("a\n{{ raise_exception('no ' + secret) }}").unwrap();
        let failure = template.render(minijinja::context! { secret => "hunter2" }, false).unwrap_err();
        assert_eq!(failure.to_string(), "the chat template refuses the chat in line 2: invalid operation");
        assert_eq!(compile("a\n{% if %}").unwrap_err(), "line 2: unexpected end of block");
    }

    #[test]
    fn rendered_text_is_bounded() {
        let deep = |depth: usize| {
            let json = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
            serde_json::from_str::<Value>(&json).unwrap()
        };
        let chat = |count| minijinja::context! { tools => vec![deep(100); count] };
        // Of 201 bytes each: 40 KB of indented JSON.
        for source in [
            "{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}",
            "{% for tool in tools %}{% set x = tool | tojson(indent=4) %}{% endfor %}",
        ] {
            let template = compile(source).unwrap();
            assert!(template.render(chat(300), false).is_ok());
            let failure = template.render(chat(500), false).unwrap_err();
            assert_eq!(failure.to_string(), "the chat template makes more than 16 MiB of the chat");
        }
        let template = compile("{% for tool in tools %}{{ text }}{% endfor %}").unwrap();
        let long = minijinja::context! { tools => vec![1; 17], text => "x".repeat(1 << 20) };
        assert_eq!(template.render(long, false), Err(TemplateFailure::TooLong));
    }

    #[test]
    fn tags_around_generated_text_print_nothing() {
        let template = compile("a{%- generation -%} b {% endgeneration %}\nc{% if x %}").unwrap_err();
        assert!(template.starts_with("line "), "{template}");
        let template = compile("a\n{%- generation -%} b {% endgeneration %}\nc").unwrap();
        assert_eq!(template.render(Value::UNDEFINED, false).unwrap(), "ab c");
    }

    #[test]
    fn loops_over_content_request_content_parts() {
        for source in [
            "{% for m in messages %}{%- for part in m['content'] -%}x{% endfor %}{% endfor %}",
            "{% for m in messages %}{% for c in m.content|selectattr('type') %}x{% endfor %}{% endfor %}",
            "{% macro m(content) %}{% for item in content %}x{% endfor %}{% endmacro %}",
        ] {
            assert_eq!(compile(source).unwrap().format, ContentFormat::Parts, "{source}");
        }
        let text = compile("{% for m in messages %}{{ m['content'] }}{% endfor %}").unwrap();
        assert_eq!(text.format, ContentFormat::Text);
    }
}
