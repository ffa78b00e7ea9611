//! Chats as vLLM hands them to a template: contents as strings or parts, arguments of tool calls as maps.

use minijinja::Value;
use minijinja::value::ValueKind;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::template::{ChatTemplate, ContentFormat, TemplateFailure};

/// Fields of a chat completion's body that its prompt depends on.
#[derive(Deserialize)]
pub(super) struct Chat {
    messages: Vec<Value>,
    #[serde(default)]
    tools: Option<Vec<Value>>,
    #[serde(default)]
    documents: Option<Value>,
    #[serde(default)]
    reasoning_effort: Option<Value>,
    #[serde(default)]
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    continue_final_message: Option<bool>,
    #[serde(default)]
    chat_template_kwargs: Option<Value>,
    #[serde(default)]
    pub(super) add_special_tokens: Option<bool>,
    /// A template of the request's own: an engine refuses it, or uses it.
    #[serde(default)]
    chat_template: Option<IgnoredAny>,
    #[serde(default)]
    truncate_prompt_tokens: Option<IgnoredAny>,
}

/// Error of a chat that has no text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChatFailure {
    /// A field that isn't what it should be, or that changes the prompt in a way that isn't known here.
    Unknown(&'static str),
    Template(TemplateFailure),
}

impl Chat {
    /// The text that the template makes of the chat, special tokens of the model by name.
    ///
    /// # Errors
    /// `ChatFailure` for messages of another form, and for those that the template refuses.
    pub(super) fn render(
        self,
        template: &ChatTemplate,
        special: &[(String, String)],
    ) -> Result<String, ChatFailure> {
        if self.chat_template.is_some() || self.truncate_prompt_tokens.is_some() {
            return Err(ChatFailure::Unknown("chat_template or truncate_prompt_tokens"));
        }
        let messages: Option<Vec<Value>> =
            self.messages.iter().map(|message| message_of(message, template.format)).collect();
        let messages = messages.ok_or(ChatFailure::Unknown("messages"))?;
        let continues = self.continue_final_message.unwrap_or(false);
        let last = messages.last().filter(|_| continues).map(last_text);
        let tools: Option<Option<Vec<Value>>> = self.tools.map(|tools| tools.iter().map(tool_of).collect());
        let tools = tools.map(|tools| tools.ok_or(ChatFailure::Unknown("tools"))).transpose()?;
        let has_tools = tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let mut context: Vec<(Value, Value)> =
            special.iter().map(|(name, text)| (name.into(), text.into())).collect();
        let mut set = |key: &str, value: Value| context.push((key.into(), value));
        set("messages", messages.into());
        set("tools", tools.map_or(Value::from(()), Value::from));
        set("documents", self.documents.unwrap_or(Value::from(())));
        set("add_generation_prompt", self.add_generation_prompt.unwrap_or(true).into());
        if let Some(effort) = self.reasoning_effort.filter(|effort| !effort.is_none()) {
            set("reasoning_effort", effort);
        }
        if let Some(more) = self.chat_template_kwargs.filter(|more| !more.is_none()) {
            context.extend(pairs(&more).ok_or(ChatFailure::Unknown("chat_template_kwargs"))?);
        }
        let text = template.render(map(context), has_tools).map_err(ChatFailure::Template)?;
        match last {
            None => Ok(text),
            Some(last) => {
                last.and_then(|last| cut_after(text, &last)).ok_or(ChatFailure::Unknown("final message"))
            }
        }
    }
}

fn pairs(value: &Value) -> Option<Vec<(Value, Value)>> {
    if value.kind() != ValueKind::Map {
        return None;
    }
    value.try_iter().ok()?.map(|key| Some((key.clone(), value.get_item(&key).ok()?))).collect()
}

fn map(pairs: Vec<(Value, Value)>) -> Value {
    Value::from_pairs(pairs)
}

/// A member that is there and not null.
fn member(value: &Value, key: &str) -> Option<Value> {
    value.get_attr(key).ok().filter(|found| !found.is_none() && !found.is_undefined())
}

fn message_of(message: &Value, format: ContentFormat) -> Option<Value> {
    let role = member(message, "role").filter(|role| role.kind() == ValueKind::String)?;
    let is = |name: &str| role.as_str() == Some(name);
    let parts = match member(message, "content") {
        None => Vec::new(),
        Some(content) if content.kind() == ValueKind::String => vec![content],
        Some(content) if content.kind() == ValueKind::Seq => {
            content.try_iter().ok()?.map(|part| text_of(&part)).collect::<Option<_>>()?
        }
        Some(_) => return None,
    };
    let content = match format {
        ContentFormat::Text => {
            let texts: Option<Vec<&str>> = parts.iter().map(Value::as_str).collect();
            texts?.join("\n").into()
        }
        ContentFormat::Parts => parts
            .into_iter()
            .map(|text| map(vec![("type".into(), "text".into()), ("text".into(), text)]))
            .collect(),
    };
    let mut fields = vec![("role".into(), role.clone()), ("content".into(), content)];
    let mut keep =
        |key: &'static str, value: Option<Value>| fields.extend(value.map(|value| (key.into(), value)));
    if is("assistant") {
        let calls = match member(message, "tool_calls") {
            None => Vec::new(),
            Some(calls) => calls.try_iter().ok()?.map(|call| call_of(&call)).collect::<Option<Vec<_>>>()?,
        };
        keep("tool_calls", (!calls.is_empty()).then(|| calls.into()));
        let reasoning = member(message, "reasoning").or_else(|| member(message, "reasoning_content"));
        keep("reasoning", reasoning.clone());
        keep("reasoning_content", reasoning);
    }
    if is("tool") {
        keep("tool_call_id", member(message, "tool_call_id"));
    }
    if is("developer") {
        keep("tools", member(message, "tools"));
    }
    keep("name", member(message, "name").filter(|name| name.kind() == ValueKind::String));
    Some(map(fields))
}

/// The text of a part of a content; `None` where it is no text.
fn text_of(part: &Value) -> Option<Value> {
    if part.kind() == ValueKind::String {
        return Some(part.clone());
    }
    let key = match member(part, "type").as_ref().and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text") | None => "text",
        Some("refusal") => "refusal",
        Some("thinking") => "thinking",
        Some(_) => return None,
    };
    member(part, key).filter(|text| text.kind() == ValueKind::String)
}

/// A tool call whose arguments are a map, not text of one.
fn call_of(call: &Value) -> Option<Value> {
    let function = member(call, "function")?;
    let arguments = match member(&function, "arguments") {
        None => map(Vec::new()),
        Some(text) if text.kind() == ValueKind::String => match text.as_str()? {
            "" => map(Vec::new()),
            text => serde_json::from_str(text).ok()?,
        },
        Some(other) => other,
    };
    with(call, "function", with(&function, "arguments", arguments)?)
}

/// A map with another value of a key, which stays where it was.
fn with(value: &Value, key: &str, new: Value) -> Option<Value> {
    let mut fields = pairs(value)?;
    match fields.iter_mut().find(|(name, _)| name.as_str() == Some(key)) {
        Some((_, old)) => *old = new,
        None => fields.push((key.into(), new)),
    }
    Some(map(fields))
}

/// A tool with all fields of OpenAI's definition, in its order, and then its others.
fn tool_of(tool: &Value) -> Option<Value> {
    let fields = pairs(tool)?;
    let kind = member(tool, "type").unwrap_or_else(|| "function".into());
    let function = member(tool, "function")?;
    let named = ["name", "description", "parameters"];
    let mut inner: Vec<(Value, Value)> =
        named.iter().map(|&key| (key.into(), member(&function, key).unwrap_or(Value::from(())))).collect();
    let is_other =
        |names: &[&str], (key, _): &(Value, Value)| !key.as_str().is_some_and(|key| names.contains(&key));
    inner.extend(pairs(&function)?.into_iter().filter(|field| is_other(&named, field)));
    let mut outer = vec![("type".into(), kind), ("function".into(), map(inner))];
    outer.extend(fields.into_iter().filter(|field| is_other(&["type", "function"], field)));
    Some(map(outer))
}

/// The last text of a message.
fn last_text(message: &Value) -> Option<String> {
    let content = member(message, "content")?;
    if let Some(text) = content.as_str() {
        return Some(text.to_owned());
    }
    let last = content.try_iter().ok()?.last()?;
    Some(member(&last, "text")?.as_str()?.to_owned())
}

/// A chat up to its last message's text: the end of a turn, which a template writes behind it, is cut.
fn cut_after(mut text: String, last: &str) -> Option<String> {
    let start = text.rfind(last.trim())?;
    let whole = last.trim_start();
    let len = if text.get(start..)?.starts_with(whole) { whole.len() } else { last.trim().len() };
    text.truncate(start + len);
    Some(text)
}
