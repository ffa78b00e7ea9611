use super::*;
use crate::request::body::Body;
use crate::request::json::Scanner;
use bytes::Bytes;

fn parse(api: Api, text: &str) -> Result<(Parsed, Body), String> {
    let (mut scanner, mut collector) = (Scanner::default(), Collector::new(api));
    let mut body = Body::default();
    // Cut into small chunks, so that every value is split somewhere.
    for chunk in text.as_bytes().chunks(7) {
        scanner.feed(chunk, &mut collector).map_err(|e| e.to_string())?;
        body.push(Bytes::copy_from_slice(chunk));
    }
    body.seal();
    scanner.finish(&mut collector).map_err(|e| e.to_string())?;
    Ok((collector.finish().map_err(str::to_owned)?, body))
}

fn parts(api: Api, text: &str) -> Vec<(PartKind, String)> {
    let (parsed, body) = parse(api, text).unwrap();
    let text = |part: &Part| String::from_utf8(part.bytes(&body).into_owned()).unwrap();
    parsed.prompt.parts.iter().map(|part| (part.kind, text(part))).collect()
}

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
    assert_eq!(got, want.map(|(kind, text)| (kind, text.to_owned())));
}

#[test]
fn a_block_says_what_its_type_names() {
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
        let want: Vec<_> = want.iter().map(|(kind, text)| (*kind, (*text).to_owned())).collect();
        assert_eq!(parts(Api::ChatCompletions, &text), want, "{block}");
    }
}

#[test]
fn a_completion_has_text_texts_or_tokens() {
    use PartKind::*;
    assert_eq!(parts(Api::Completions, r#"{"prompt":"hi"}"#), [(Text, "hi".into())]);
    assert_eq!(parts(Api::Completions, r#"{"prompt":["a","b"]}"#), [(Text, "a".into()), (Text, "b".into())]);
    assert_eq!(parts(Api::Completions, r#"{"prompt": [1, 2,3]}"#), [(Tokens, "[1, 2,3]".into())]);
    assert!(parse(Api::Completions, r#"{"prompt":["a","b"]}"#).unwrap().0.prompt.separate);
    assert!(!parse(Api::Completions, r#"{"prompt":["a"]}"#).unwrap().0.prompt.separate);
    assert_eq!(parts(Api::Completions, r#"{"prompt":"first","prompt":"last"}"#), [(Text, "last".into())]);
}

#[test]
fn members_are_read_wherever_they_stand() {
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
fn the_output_cap_is_the_first_that_counts() {
    let cap = |api, member: &str| {
        let base = r#""prompt":"x","messages":[{"role":"user"}]"#;
        parse(api, &format!("{{{base},{member}}}")).unwrap().0.max_output_tokens
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
fn what_is_not_a_request_is_refused() {
    let chat = [
        "[1]",
        r#""text""#,
        "{}",
        r#"{"messages":[]}"#,
        r#"{"messages":"hi"}"#,
        r#"{"messages":["hi"]}"#,
        r#"{"messages":[{"role":"user","content":5}]}"#,
        r#"{"messages":[{"role":"user","content":{"type":"text"}}]}"#,
        r#"{"messages":[{"role":7,"content":"x"}]}"#,
        r#"{"messages":[{"role":"user","content":["x"]}]}"#,
        r#"{"messages":[{"role":"user"}],"messages":null}"#,
        r#"{"prompt":"hi"}"#,
    ];
    for text in chat {
        assert!(parse(Api::ChatCompletions, text).is_err(), "{text}");
    }
    let completions = [
        "[1]",
        "{}",
        r#"{"prompt":""}"#,
        r#"{"prompt":[]}"#,
        r#"{"prompt":null}"#,
        r#"{"prompt":["a",1]}"#,
        r#"{"prompt":[1,"a"]}"#,
        r#"{"prompt":[[1,2]]}"#,
        r#"{"prompt":[-1]}"#,
        r#"{"prompt":[1.5]}"#,
        r#"{"prompt":[4294967296]}"#,
        r#"{"messages":[{"role":"user","content":"x"}]}"#,
    ];
    for text in completions {
        assert!(parse(Api::Completions, text).is_err(), "{text}");
    }
}
