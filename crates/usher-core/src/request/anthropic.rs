//! Anthropic's messages: their bodies.

use super::collect::{Format, Member};
use super::messages::{Asset, BlockFormat, Place, Take};
use super::openai::common;
use super::prompt::PartKind;

/// Blocks of a message's content, and of a tool's result in it.
static BLOCKS: BlockFormat = BlockFormat {
    member: |name| match name {
        b"type" => Place::Type,
        b"text" => Place::Text(0),
        b"thinking" => Place::Text(1),
        b"source" => Place::Inside(2, Asset::UrlOrData),
        b"id" => Place::Text(3),
        b"name" => Place::Text(4),
        b"input" => Place::Json(5),
        b"content" => Place::Blocks,
        _ => Place::None,
    },
    takes: |kind| match kind {
        b"text" => &[Take::Kept(0, PartKind::Text)],
        b"thinking" => &[Take::Kept(1, PartKind::Text)],
        b"image" => &[Take::Kept(2, PartKind::Image)],
        b"tool_use" => {
            &[Take::Kept(3, PartKind::Text), Take::Kept(4, PartKind::Text), Take::Kept(5, PartKind::Json)]
        }
        b"tool_result" => &[Take::Blocks],
        _ => &[],
    },
    without: None,
};

/// Blocks of the system's words. One of them is for billing: it differs from request to
/// request, and the model doesn't see it.
static SYSTEM: BlockFormat = BlockFormat {
    member: |name| match name {
        b"type" => Place::Type,
        b"text" => Place::Text(0),
        _ => Place::None,
    },
    takes: |kind| match kind {
        b"text" => &[Take::Kept(0, PartKind::Text)],
        _ => &[],
    },
    without: Some(b"x-anthropic-billing-header"),
};

/// Messages.
pub(super) static MESSAGES: Format = Format {
    member: |name| match name {
        b"messages" => Member::Messages(&BLOCKS),
        b"system" => Member::System(&SYSTEM),
        b"max_tokens" => Member::OutputCap(0),
        b"tools" => Member::Before(0, PartKind::Tools),
        _ => common(name),
    },
    problem: "messages must be a non-empty list of objects whose content is text or a list of blocks, \
              and system text or a list of blocks",
};

#[cfg(test)]
mod tests {
    use super::super::api::Api;
    use super::super::prompt::PartKind::{Image, Json, Role, Text, Tools};
    use super::super::testing::{parse, parts, refused};
    use super::*;

    #[test]
    fn a_message_is_tools_then_system_then_role_and_content() {
        let body = r#"{"model":"m","max_tokens":5,"stream":true,"cache_salt":"s","messages":[
            {"role":"user","content":"hi"},
            {"role":"assistant","content":[
                {"type":"thinking","thinking":"hm","signature":"x"},
                {"input":{"q": ["a"]},"name":"search","id":"t1","type":"tool_use"}]},
            {"role":"user","content":[
                {"type":"tool_result","tool_use_id":"t1","content":"found"},
                {"content":[{"type":"text","text":"\u0061"},{"source":{"type":"base64","data":"AAAA"},"type":"image"}],
                 "type":"tool_result"},
                {"type":"image","source":{"type":"url","url":"https://x/y.png"}},
                {"type":"document","source":{"data":"no"}}]}],
            "system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"be kind"}],
            "tools":[{"name":"search"}]}"#;
        let want = [
            (Tools, r#"[{"name":"search"}]"#),
            (Text, "be kind"),
            (Role, "user"),
            (Text, "hi"),
            (Role, "assistant"),
            (Text, "hm"),
            (Text, "t1"),
            (Text, "search"),
            (Json, r#"{"q": ["a"]}"#),
            (Role, "user"),
            (Text, "found"),
            (Text, "a"),
            (Image, "AAAA"),
            (Image, "https://x/y.png"),
        ];
        assert_eq!(parts(Api::Messages, body), want);
        let (parsed, kept) = parse(Api::Messages, body).unwrap();
        assert_eq!((parsed.stream, parsed.max_output_tokens), (true, Some(5)));
        assert_eq!(parsed.cache_salt.unwrap().bytes(&kept).as_ref(), b"s");
        assert!(parsed.prompt.is_multimodal());
    }

    #[test]
    fn the_system_is_text_or_blocks() {
        let with = |system: &str| format!(r#"{{"system":{system},"messages":[{{"content":"x"}}]}}"#);
        let table: [(&str, &[(PartKind, &str)]); 6] = [
            (r#""be kind""#, &[(Text, "be kind"), (Text, "x")]),
            (r#""x-anthropic-billing-header""#, &[(Text, "x-anthropic-billing-header"), (Text, "x")]),
            (r#"[{"text":"a","type":"text"},{"type":"image"},null]"#, &[(Text, "a"), (Text, "x")]),
            (r#"[{"type":"text","text":"x-anthropic-billing-header: cch=1;"}]"#, &[(Text, "x")]),
            ("null", &[(Text, "x")]),
            (r#"[],"system":"last""#, &[(Text, "last"), (Text, "x")]),
        ];
        for (system, want) in table {
            assert_eq!(parts(Api::Messages, with(system)), want, "{system}");
        }
        for system in ["5", "{}", r#"["a"]"#, r#"{"type":"text","text":"a"}"#] {
            refused(Api::Messages, with(system), "system text or a list of blocks");
        }
    }

    #[test]
    fn blocks_inside_of_blocks_are_read_one_level_deep() {
        // block, what is read of it
        let table: [(&str, &[(PartKind, &str)]); 7] = [
            (r#"{"type":"tool_result","content":[{"type":"tool_result","content":"no"}]}"#, &[]),
            (
                r#"{"type":"tool_result","content":[{"type":"tool_use","id":"i","name":"n","input":{"a":{}}}]}"#,
                &[(Text, "i"), (Text, "n"), (Json, r#"{"a":{}}"#)],
            ),
            (r#"{"type":"tool_result","content":{"a":{"type":"text","text":"no"}}}"#, &[]),
            (r#"{"type":"tool_result","content":[["x"],"y",5,null]}"#, &[]),
            (r#"{"type":"tool_result","content":["x"],"content":"last"}"#, &[(Text, "last")]),
            (r#"{"type":"text","text":"a","content":[{"type":"text","text":"no"}]}"#, &[(Text, "a")]),
            (r#"{"type":"image","source":[{"data":"no"}]}"#, &[]),
        ];
        for (block, want) in table {
            let body = format!(r#"{{"messages":[{{"content":[{block}]}}]}}"#);
            assert_eq!(parts(Api::Messages, body), want, "{block}");
        }
        let deep = format!(r#"{{"messages":[{{"content":{}{}}}]}}"#, "[".repeat(5000), "]".repeat(5000));
        refused(Api::Messages, deep, "messages must be");
    }

    #[test]
    fn messages_request_without_messages_is_refused() {
        let table = [
            "[1]",
            "{}",
            r#"{"system":"x"}"#,
            r#"{"messages":[]}"#,
            r#"{"messages":"hi"}"#,
            r#"{"messages":[{"role":"user","content":{"type":"text"}}]}"#,
            r#"{"messages":[{"role":"user","content":["x"]}]}"#,
            r#"{"messages":[{"role":["user"],"content":"x"}]}"#,
        ];
        for text in table {
            refused(Api::Messages, text, "messages must be a non-empty list");
        }
    }
}
