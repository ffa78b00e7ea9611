use super::super::api::Api;
use super::super::prompt::{MAX_PARTS, PartKind};
use super::super::testing::{parse, parse_in, parts, refused};

#[test]
fn a_chat_is_tools_then_role_and_content_of_each_message() {
    use PartKind::*;
    let text = r#"{"messages":[
        {"role":"system","content":"be \"kind\""},
        {"content":[{"type":"text","text":"what is this?"},
                    {"type":"image_url","image_url":{"detail":"low","url":"https://x/y.png"}},
                    {"input_audio":{"format":"wav","data":"AAAA"},"type":"input_audio"},
                    {"type":"unknown","text":"not read"}],"role":"user"},
        {"role":"assistant","content":null,"tool_calls":[{"function":{"role":"x","content":"y"}}]}],
        "tools":[{"type":"function"}],"model":"m"}"#;
    let got = parts(Api::ChatCompletions, text);
    let want = [
        (Tools, r#"[{"type":"function"}]"#),
        (Role, "system"),
        (Text, "be \"kind\""),
        (Role, "user"),
        (Text, "what is this?"),
        (Image, "https://x/y.png"),
        (Audio, "AAAA"),
        (Role, "assistant"),
    ];
    assert_eq!(got, want);
}

#[test]
fn content_block_is_read_by_its_type() {
    use PartKind::*;
    // block, what is read of it
    let table: [(&str, &[(PartKind, &str)]); 9] = [
        (r#"{"type":"text","text":"a","image_url":{"url":"b"}}"#, &[(Text, "a")]),
        (r#"{"type":"image_url","text":"a","image_url":{"url":"b"}}"#, &[(Image, "b")]),
        (r#"{"type":"video_url","video_url":{"url":"b"},"image_url":{"url":"c"}}"#, &[(Video, "b")]),
        (r#"{"t\u0079pe":"te\u0078t","text":"a"}"#, &[(Text, "a")]),
        (r#"{"type":"text","text":{"text":"a"}}"#, &[]),
        (r#"{"type":"text","text":["a"]}"#, &[]),
        (r#"{"type":["text"],"text":"a"}"#, &[]),
        (r#"{"type":"image_url","image_url":{"x":{"url":"a"}}}"#, &[]),
        (r#"{"type":"image_url","image_url":{"url":"a"},"image_url":"b"}"#, &[]),
    ];
    for (block, want) in table {
        let text = format!(r#"{{"messages":[{{"content":[{block}]}}]}}"#);
        assert_eq!(parts(Api::ChatCompletions, &text), want, "{block}");
    }
}

#[test]
fn a_completion_has_text_texts_or_tokens() {
    use PartKind::*;
    assert_eq!(parts(Api::Completions, r#"{"prompt":"hi"}"#), [(Text, "hi")]);
    assert_eq!(parts(Api::Completions, r#"{"prompt":["a","b"]}"#), [(Text, "a"), (Text, "b")]);
    assert_eq!(parts(Api::Completions, r#"{"prompt": [1, 2,3]}"#), [(Tokens, "[1, 2,3]")]);
    assert!(parse(Api::Completions, r#"{"prompt":["a","b"]}"#).unwrap().0.prompt.separate);
    assert!(!parse(Api::Completions, r#"{"prompt":["a"]}"#).unwrap().0.prompt.separate);
    assert_eq!(parts(Api::Completions, r#"{"prompt":"first","prompt":"last"}"#), [(Text, "last")]);
}

#[test]
fn members_are_read_in_any_order() {
    let text = r#"{"max_tokens":5,"str\u0065am":true,"other":{"model":"no"},"prompt":"x",
                   "cache_salt":"s","model":"na\u006de"}"#;
    let (parsed, body) = parse(Api::Completions, text).unwrap();
    assert_eq!(parsed.model.unwrap().bytes(&body).as_ref(), b"name");
    assert_eq!(body.bytes(parsed.model_value.unwrap()).as_ref(), br#""na\u006de""#);
    assert_eq!(parsed.cache_salt.unwrap().bytes(&body).as_ref(), b"s");
    assert!(parsed.stream);
    assert_eq!(parsed.max_output_tokens, Some(5));
    assert_eq!(parsed.first_member, (1, true));
}

#[test]
fn a_name_may_hold_a_backslash() {
    let text = r#"{"\\":1,"model\\":"no","\\u006dodel":"no","prompt":"x"}"#;
    assert_eq!(parse(Api::Completions, text).unwrap().0.model, None);
}

#[test]
fn first_valid_output_cap_counts() {
    let cap = |api, member: &str| {
        let base = r#""prompt":"x","messages":[{"role":"user"}]"#;
        parse(api, format!("{{{base},{member}}}")).unwrap().0.max_output_tokens
    };
    let table = [
        (Api::ChatCompletions, r#""max_tokens":5,"max_completion_tokens":7"#, Some(7)),
        (Api::ChatCompletions, r#""max_tokens":5,"max_completion_tokens":"7""#, Some(5)),
        (Api::ChatCompletions, r#""max_tokens":5,"max_completion_tokens":-1"#, Some(5)),
        (Api::ChatCompletions, r#""max_tokens":1.5"#, None),
        (Api::Completions, r#""max_tokens":5.0,"max_completion_tokens":7"#, Some(5)),
        (Api::Completions, r#""max_tokens":1e2"#, Some(100)),
    ];
    for (api, member, want) in table {
        assert_eq!(cap(api, member), want, "{member}");
    }
}

#[test]
fn invalid_requests_are_refused() {
    let chat = [
        "[1]",
        r#""text""#,
        "{}",
        r#"{"messages":[]}"#,
        r#"{"messages":"hi"}"#,
        r#"{"messages":["hi"]}"#,
        r#"{"messages":{"a":{"content":"x"},"b":{"role":"y"}}}"#,
        r#"{"messages":[[{"role":"user","content":"x"}]]}"#,
        r#"{"messages":[{"role":"user","content":5}]}"#,
        r#"{"messages":[{"role":"user","content":{"type":"text"}}]}"#,
        r#"{"messages":[{"role":7,"content":"x"}]}"#,
        r#"{"messages":[{"role":"user","content":["x"]}]}"#,
        r#"{"messages":[{"role":"user"}],"messages":null}"#,
        r#"{"prompt":"hi"}"#,
    ];
    for text in chat {
        refused(Api::ChatCompletions, text, "messages must be a non-empty list");
        refused(Api::ChatCompletionsRender, text, "messages must be a non-empty list");
    }
    let completions = [
        "[1]",
        "{}",
        r#"{"prompt":""}"#,
        r#"{"prompt":[]}"#,
        r#"{"prompt":null}"#,
        r#"{"prompt":{"a":"x"}}"#,
        r#"{"prompt":["a",1]}"#,
        r#"{"prompt":[1,"a"]}"#,
        r#"{"prompt":[[1,2]]}"#,
        r#"{"prompt":[-1]}"#,
        r#"{"prompt":[1.5]}"#,
        r#"{"prompt":[4294967296]}"#,
        r#"{"messages":[{"role":"user","content":"x"}]}"#,
    ];
    for text in completions {
        refused(Api::Completions, text, "prompt must be text, a list");
        refused(Api::CompletionsRender, text, "prompt must be text, a list");
        refused(Api::Embeddings, text.replace("prompt", "input"), "input must be text, a list");
    }
    for input in ["{}", r#"{"input":null}"#, r#"{"input":"x","input":null}"#, r#"{"prompt":"x"}"#] {
        refused(Api::Responses, input, "input must be there");
    }
    for items in ["{}", r#"{"items":[]}"#, r#"{"items":{}}"#, r#"{"items":[5]}"#, r#"{"items":"x"}"#] {
        refused(Api::Conversations, items, "items must be");
    }
    for prompt in ["{}", r#"{"prompt":""}"#, r#"{"prompt":["a"]}"#, r#"{"prompt":[1]}"#, r#"{"prompt":5}"#] {
        refused(Api::ImageGenerations, prompt, "prompt must be text, and not empty");
    }
}

#[test]
fn embeddings_have_text_texts_or_tokens() {
    use PartKind::*;
    let table: [(&str, &[(PartKind, &str)]); 3] = [
        (r#"{"input":"hi"}"#, &[(Text, "hi")]),
        (r#"{"input":["a","b"]}"#, &[(Text, "a"), (Text, "b")]),
        (r#"{"input":[1,2]}"#, &[(Tokens, "[1,2]")]),
    ];
    for (text, want) in table {
        assert_eq!(parts(Api::Embeddings, text), want, "{text}");
    }
    assert!(parse(Api::Embeddings, r#"{"input":["a","b"]}"#).unwrap().0.prompt.separate);
}

#[test]
fn a_response_is_instructions_then_tools_then_input() {
    use PartKind::*;
    let table: [(&str, &[(PartKind, &str)]); 5] = [
        (
            r#"{"input":"h\u0069","tools":[{"type":"web"}],"instructions":"be kind"}"#,
            &[(Text, "be kind"), (Tools, r#"[{"type":"web"}]"#), (Text, "hi")],
        ),
        (
            r#"{"instructions":[{"role":"system"}],"input":[ {"role":"user"} ]}"#,
            &[(Json, r#"[{"role":"system"}]"#), (Json, r#"[ {"role":"user"} ]"#)],
        ),
        (r#"{"instructions":null,"tools":"none","input":{}}"#, &[(Json, "{}")]),
        (r#"{"input":5}"#, &[(Json, "5")]),
        (r#"{"input":""}"#, &[(Text, "")]),
    ];
    for (text, want) in table {
        assert_eq!(parts(Api::Responses, text), want, "{text}");
    }
    let (parsed, _) = parse(Api::Responses, r#"{"input":"x","max_output_tokens":7,"max_tokens":8}"#).unwrap();
    assert_eq!(parsed.max_output_tokens, Some(7));
}

#[test]
fn conversations_and_images_have_a_prompt() {
    let items = r#"[{"type":"message","role":"user","content":"hi"}, null]"#;
    let body = format!(r#"{{"items":{items},"metadata":{{"a":"b"}}}}"#);
    assert_eq!(parts(Api::Conversations, &body), [(PartKind::Json, items)]);
    assert_eq!(parts(Api::ImageGenerations, r#"{"prompt":"a cat","n":2}"#), [(PartKind::Text, "a cat")]);
}

#[test]
fn the_parts_of_a_prompt_are_bounded() {
    let many = |element: &str| vec![element; MAX_PARTS + 9].join(",");
    let texts = format!(r#"{{"prompt":[{}]}}"#, many(r#""""#));
    let roles = format!(r#"{{"tools":[],"messages":[{}]}}"#, many(r#"{"role":"","content":""}"#));
    let block = r#"{"type":"text","text":""}"#;
    let blocks = format!(r#"{{"messages":[{{"role":"x","content":[{}]}}]}}"#, many(block));
    for (api, body) in
        [(Api::Completions, &texts), (Api::ChatCompletions, &roles), (Api::ChatCompletions, &blocks)]
    {
        let (parsed, _) = parse_in(api, body.as_bytes(), body.len());
        let parts = parsed.unwrap().prompt.parts.len();
        assert!((MAX_PARTS..=MAX_PARTS + 1).contains(&parts), "{parts}");
    }
}
