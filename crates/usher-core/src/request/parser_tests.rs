use proptest::prelude::*;

use super::super::api::ParserKind;
use super::super::prompt::Prompt;
use super::super::protos::{GenerateRequest, Input, PredictRequest, TokenizedInput, framed};
use super::super::rules::{ModelRewrite, RewriteRule, Rewrites, Target};
use super::*;

fn parse(headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Result<Request, ParseError> {
    let parsers = Parsers::new(&ParserKind::ALL);
    let mut parser = RequestParser::new(headers.iter().copied().collect(), &parsers);
    for chunk in body.as_ref().chunks(5) {
        parser.push(Bytes::copy_from_slice(chunk));
    }
    parser.finish()
}

fn sent(request: &Request) -> String {
    String::from_utf8(request.outgoing().chunks().concat()).unwrap()
}

#[test]
fn only_the_bytes_of_the_model_change() {
    let to = [("x-llm-d-model-name-rewrite", "t\"x")];
    // body, sent
    let table = [
        (
            r#"{"model":"m", "prompt":"hi","seed":9007199254740993}"#,
            r#"{"model":"t\"x", "prompt":"hi","seed":9007199254740993}"#,
        ),
        (r#"{ "prompt":"<&>"}"#, r#"{"model":"t\"x", "prompt":"<&>"}"#),
        (r#"{"prompt":"a","model":null}"#, r#"{"prompt":"a","model":"t\"x"}"#),
        (r#"{"prompt":"a","model":["x"]}"#, r#"{"prompt":"a","model":"t\"x"}"#),
        (
            r#"{"model":"first","prompt":"a","model":"last"}"#,
            r#"{"model":"first","prompt":"a","model":"t\"x"}"#,
        ),
    ];
    for (body, want) in table {
        let request = parse(&to, body).unwrap();
        assert_eq!(sent(&request), want);
        assert_eq!(request.target_model, "t\"x");
    }
}

#[test]
fn an_equal_name_leaves_the_body_as_it_was() {
    let body = r#"{"model":"m","prompt":"hi"}"#;
    let request = parse(&[("x-gateway-model-name-rewrite", "m")], body).unwrap();
    assert!(request.rewrite.is_none());
    assert_eq!(sent(&request), body);
}

#[test]
fn the_new_header_wins_over_the_old_one() {
    let headers = [("x-gateway-model-name-rewrite", "old"), ("x-llm-d-model-name-rewrite", "new")];
    assert_eq!(parse(&headers, r#"{"model":"m","prompt":"x"}"#).unwrap().target_model, "new");
}

#[test]
fn pass_through_request_is_not_parsed() {
    let headers = [(":path", "/tokenize"), ("x-llm-d-model-name-rewrite", "t")];
    let request = parse(&headers, "not json").unwrap();
    assert_eq!((request.model.as_str(), request.target_model.as_str()), ("", ""));
    assert_eq!(sent(&request), "not json");
}

#[test]
fn model_names_are_bounded() {
    let named = |member: &str, name: &str| format!(r#"{{"model":"m","prompt":"x","{member}":"{name}"}}"#);
    for field in ["model", "cache_salt"] {
        for longest in
            ["x".repeat(MAX_NAME), r"\u0041".repeat(MAX_NAME), r"\ud83d\ude00".repeat(MAX_NAME / 4)]
        {
            let request = parse(&[], named(field, &longest)).unwrap();
            assert_eq!(request.model.len(), if field == "model" { MAX_NAME } else { 1 });
            let error = parse(&[], named(field, &format!("{longest}y"))).unwrap_err();
            assert_eq!(error, ParseError::LongName(field));
            assert_eq!(error.to_string(), format!("{field} has more than 1024 bytes"));
        }
    }
    // What is no UTF-8 becomes longer.
    let bytes = [br#"{"prompt":"x","model":""#, &[0xff; MAX_NAME][..], br#""}"#].concat();
    assert_eq!(parse(&[], bytes).unwrap_err(), ParseError::LongName("model"));
    let long = "x".repeat(MAX_NAME + 1);
    let generate = format!(r#"{{"input_ids":[1],"extra_key":"{long}"}}"#);
    assert_eq!(parse(&[(":path", "/generate")], generate).unwrap_err(), ParseError::LongName("extra_key"));
    // A header that is too long is as good as none.
    let headers = [("x-llm-d-model-name-rewrite", long.as_str()), ("x-gateway-model-name-rewrite", "t")];
    let request = parse(&headers, r#"{"model":"m","prompt":"x"}"#).unwrap();
    assert_eq!(request.target_model, "t");
    assert!(request.headers.take_ignored().eq([&b"x-llm-d-model-name-rewrite"[..]]));
}

#[test]
fn parsed_parts_of_a_body_are_counted() {
    let counted = |path: &str, body: &str| {
        let headers = [(":path", path)].into_iter().collect();
        let mut parser = RequestParser::new(headers, &Parsers::new(&ParserKind::ALL));
        parser.push(Bytes::copy_from_slice(body.as_bytes()));
        parser.counted() - body.len()
    };
    let many = |element: &str, count: usize| vec![element; count].join(",");
    let texts = |count| format!(r#"{{"model":"m","prompt":[{}]}}"#, many(r#""""#, count));
    assert_eq!(counted("/v1/completions", &texts(100)), 0);
    assert!(counted("/v1/completions", &texts(10_000)) >= 10_000 * size_of::<Part>());
    let roles = format!(r#"{{"messages":[{}]}}"#, many(r#"{"role":"u","content":"x"}"#, 5000));
    assert!(counted("/v1/chat/completions", &roles) >= 10_000 * size_of::<Part>());
    let block = r#"{"type":"text","text":""}"#;
    let system = format!(r#"{{"system":[{}]}}"#, many(block, 10_000));
    assert!(counted("/v1/messages", &system) >= 20_000 * size_of::<Part>());
    let result = format!(r#"{{"type":"tool_result","content":[{}"#, many(block, 10_000));
    let nested = format!(r#"{{"messages":[{{"content":[{result}"#);
    assert!(counted("/v1/messages", &nested) >= 10_000 * size_of::<Part>());
    for (list, element, size) in [("mm_hashes", r#""a""#, 60), ("mm_placeholders", "{}", 32)] {
        let items = format!(r#"{{"features":{{"{list}":{{"image":[{}]}}}}}}"#, many(element, 1000));
        let counted = counted("/inference/v1/generate", &items);
        assert!(counted >= 1000 * size, "{list}: {counted}");
    }
}

#[test]
fn parse_errors_name_the_problem() {
    assert_eq!(parse(&[], r#"{"prompt":"x"}"#).unwrap_err(), ParseError::NoModel);
    assert_eq!(
        parse(&[], "no healthy upstream").unwrap_err().to_string(),
        "the request body is not valid JSON: unexpected 'o' at byte 1"
    );
    assert!(matches!(parse(&[], r#"{"model":"m"}"#), Err(ParseError::Shape(_))));
    let parsers = Parsers::new(&[ParserKind::OpenAi]);
    let headers = [(":path", "/v1/messages\n")].into_iter().collect();
    let error = RequestParser::new(headers, &parsers).finish().unwrap_err();
    assert_eq!(error, ParseError::NoParser("/v1/messages".into()));
    assert_eq!(
        error.to_string(),
        "no parser claims the path /v1/messages; list one for it under requestHandler.parsers"
    );
}

/// A request of each API that is read: path, body.
fn requests() -> Vec<(&'static str, Vec<u8>)> {
    let chat = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a\"b"},
        {"type":"image_url","image_url":{"url":"https://x"}}]}],"model":"m","stream":true,"tools":[{}],"max_tokens":9}"#;
    let ids = TokenizedInput { original_text: "x".to_owned(), input_ids: vec![1, 70_000] };
    let generate = GenerateRequest {
        request_id: "r".to_owned(),
        input: Some(Input::Tokenized(ids)),
        stream: true,
        ..GenerateRequest::default()
    };
    let json = |text: &str| text.as_bytes().to_vec();
    vec![
        ("/v1/chat/completions", json(chat)),
        ("/v1/chat/completions/render", json(chat)),
        ("/v1/completions", json(r#"{"model":"m","prompt":["a","b"]}"#)),
        ("/v1/completions/render", json(r#"{"model":"m","prompt":[1,2]}"#)),
        ("/v1/embeddings", json(r#"{"model":"m","input":"hi"}"#)),
        (
            "/v1/responses",
            json(r#"{"model":"m","input":[{"role":"user","content":"hi"}],"instructions":"x"}"#),
        ),
        (
            "/v1/conversations",
            json(r#"{"model":"m","items":[{"type":"message","role":"user","content":"hi"}]}"#),
        ),
        ("/v1/images/generations", json(r#"{"model":"m","prompt":"a cat"}"#)),
        (
            "/v1/messages",
            json(
                r#"{"model":"m","max_tokens":5,"system":[{"type":"text","text":"kind"}],"messages":[{"role":"user","content":
                    [{"type":"tool_result","content":[{"type":"text","text":"hi"}]},{"type":"tool_use","id":"i","name":"n","input":{"a":[1]}}]}]}"#,
            ),
        ),
        (
            "/inference/v1/generate",
            json(
                r#"{"model":"m","token_ids":[1,2],"features":{"mm_hashes":{"image":["h"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]}}}"#,
            ),
        ),
        ("/generate", json(r#"{"input_ids":[1,2],"extra_key":"k","sampling_params":{"max_new_tokens":3}}"#)),
        ("/vllm.grpc.engine.VllmEngine/Generate", framed(&generate)),
        ("/vllm.grpc.engine.VllmEngine/Embed", framed(&generate)),
        (
            "/google.cloud.aiplatform.v1beta1.PredictionService/ChatCompletions",
            framed(&PredictRequest::around(chat)),
        ),
        ("/google.cloud.aiplatform.v1.PredictionService/RawPredict", framed(&PredictRequest::around(chat))),
    ]
}

#[test]
fn every_api_that_is_read_has_a_prompt() {
    let read = requests();
    for (path, body) in &read {
        let request = parse(&[(":path", path)], body).unwrap();
        assert!(!request.prompt.parts.is_empty(), "{path}");
        assert_eq!(
            request.api.rewrites_model(),
            parse(&[(":path", path), TO], body).unwrap().target_model == "t",
            "{path}"
        );
        assert_eq!(request.target_model, request.model, "{path}");
    }
    let parsers = Parsers::new(&ParserKind::ALL);
    let mut apis: Vec<_> = read.iter().map(|(path, _)| parsers.resolve(path).unwrap()).collect();
    apis.dedup();
    assert_eq!(apis.len(), read.len(), "each API once");
}

const TO: (&str, &str) = ("x-llm-d-model-name-rewrite", "t");

#[test]
fn a_model_is_replaced_where_the_api_allows_it() {
    // path, body, model, what is sent on
    let table = [
        ("/v1/embeddings", r#"{"model":"m","input":"hi"}"#, "m", r#"{"model":"t","input":"hi"}"#),
        ("/v1/messages", r#"{"messages":[{}],"model":"m"}"#, "m", r#"{"messages":[{}],"model":"t"}"#),
        ("/v1/conversations", r#"{"items":[{}]}"#, "", r#"{"model":"t","items":[{}]}"#),
        (
            "/inference/v1/generate",
            r#"{"token_ids":[1],"model":"m"}"#,
            "m",
            r#"{"token_ids":[1],"model":"t"}"#,
        ),
        ("/v1/messages/count_tokens", r#"{"model":"m"}"#, "", r#"{"model":"m"}"#),
        ("/generate", r#"{"input_ids":[1],"model":"m"}"#, "", r#"{"input_ids":[1],"model":"m"}"#),
    ];
    for (path, body, model, want) in table {
        let request = parse(&[(":path", path), TO], body).unwrap();
        let target = if body == want { model } else { "t" };
        assert_eq!((request.model.as_str(), request.target_model.as_str()), (model, target), "{path}");
        assert_eq!(sent(&request), want, "{path}");
    }
    let predict = framed(&PredictRequest::around(r#"{"model":"m","input":"hi"}"#));
    let path = "/google.cloud.aiplatform.v1beta1.PredictionService/StreamRawPredict";
    let request = parse(&[(":path", path), TO], &predict).unwrap();
    assert_eq!((request.model.as_str(), request.target_model.as_str()), ("m", "m"));
    assert_eq!(request.outgoing().chunks().concat(), predict);
}

#[test]
fn missing_model_is_refused_if_the_api_has_one() {
    for (path, body) in [
        ("/v1/embeddings", r#"{"input":"hi"}"#),
        ("/v1/conversations", r#"{"items":[{}]}"#),
        ("/v1/messages", r#"{"messages":[{}]}"#),
        ("/inference/v1/generate", r#"{"token_ids":[1]}"#),
    ] {
        assert_eq!(parse(&[(":path", path)], body).unwrap_err(), ParseError::NoModel, "{path}");
    }
    let generate = parse(&[(":path", "/generate")], r#"{"input_ids":[1]}"#).unwrap();
    assert_eq!((generate.model.as_str(), generate.target_model.as_str()), ("", ""));
}

/// Fields of a request and its body as it is sent on, or why it was refused.
type Seen =
    Result<(String, String, bool, Option<u64>, Option<super::super::Part>, Prompt, Vec<u8>), ParseError>;

fn seen(path: &str, chunks: impl IntoIterator<Item = Bytes>) -> Seen {
    let headers = [(":path", path), TO].into_iter().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&ParserKind::ALL));
    chunks.into_iter().for_each(|chunk| parser.push(chunk));
    let request = parser.finish()?;
    let sent = request.outgoing().chunks().concat();
    let Request { model, target_model, stream, max_output_tokens, cache_salt, prompt, .. } = request;
    Ok((model, target_model, stream, max_output_tokens, cache_salt, prompt, sent))
}

proptest! {
    /// However a body is cut, also one that is broken somewhere, the request or the
    /// refusal is the same.
    #[test]
    fn any_split_gives_the_same_request(
        which in 0usize..15,
        sizes in prop::collection::vec(0usize..60, 1..12),
        broken in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let (path, mut body) = requests().swap_remove(which);
        if let Some((at, byte)) = broken {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let whole = seen(path, [Bytes::from(body.clone())]);
        let mut rest = Bytes::from(body);
        let mut chunks = Vec::new();
        for size in sizes.iter().cycle().take(4000) {
            chunks.push(rest.split_to((*size).min(rest.len())));
        }
        chunks.push(rest);
        prop_assert_eq!(seen(path, chunks), whole);
    }
}

/// The target model and the body of a request under a rule for `gold` and one for the rest.
fn by_rules(
    headers: &[(&str, &str)],
    body: &str,
    rest: Option<&str>,
) -> Result<(String, String), ParseError> {
    let rule = |models: Option<Vec<String>>, to: &str| RewriteRule {
        models,
        targets: vec![Target { model: to.to_owned(), weight: None }],
    };
    let mut rules = vec![rule(Some(vec!["gold".to_owned()]), "gold-v2")];
    rules.extend(rest.map(|to| rule(None, to)));
    let object = ModelRewrite { name: "r".to_owned(), created: String::new(), rules };
    let rules = Rules { rewrites: Rewrites::new([&object]), ..Rules::default() };
    let headers = [(":path", "/v1/completions")].iter().chain(headers).copied().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    parser.push(Bytes::copy_from_slice(body.as_bytes()));
    let request = parser.finish_by(&rules, &mut rand::rng())?;
    let outgoing = request.outgoing();
    let bytes: Vec<u8> = outgoing.chunks().iter().flat_map(|chunk| chunk.to_vec()).collect();
    Ok((request.target_model.clone(), String::from_utf8(bytes).unwrap()))
}

#[test]
fn rule_for_the_model_of_the_body_precedes_the_header() {
    let gold = r#"{"model":"gold","prompt":"x"}"#;
    let tin = r#"{"model":"tin","prompt":"x"}"#;
    let none = r#"{"prompt":"x"}"#;
    let header = [("x-llm-d-model-name-rewrite", "header")];
    // headers, body, rule for the rest, target, body
    type Row<'a> = (&'a [(&'a str, &'a str)], &'a str, Option<&'a str>, &'a str, &'a str);
    let table: [Row<'_>; 7] = [
        (&[], gold, None, "gold-v2", r#"{"model":"gold-v2","prompt":"x"}"#),
        (&header, gold, None, "gold-v2", r#"{"model":"gold-v2","prompt":"x"}"#),
        (&[], tin, None, "tin", tin),
        (&header, tin, None, "header", r#"{"model":"header","prompt":"x"}"#),
        (&header, tin, Some("any"), "any", r#"{"model":"any","prompt":"x"}"#),
        (&[], none, Some("any"), "any", r#"{"model":"any","prompt":"x"}"#),
        (&[], tin, Some("tin"), "tin", tin),
    ];
    for (headers, body, rest, target, sent) in table {
        let expected = Ok((target.to_owned(), sent.to_owned()));
        assert_eq!(by_rules(headers, body, rest), expected, "{headers:?} {body} {rest:?}");
    }
    assert_eq!(by_rules(&[], none, None), Err(ParseError::NoModel));
}
