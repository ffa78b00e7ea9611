//! vLLM's own generate over HTTP, for whoever holds the tokenizer: its bodies.

use super::collect::{Format, Member};
use super::openai::common;

/// `/inference/v1/generate`.
pub(super) static GENERATE: Format = Format {
    member: |name| match name {
        b"token_ids" => Member::Ids,
        b"sampling_params" => Member::Sampling(b"max_tokens"),
        b"features" => Member::Features,
        _ => common(name),
    },
    problem: "token_ids must be a non-empty list of token ids",
};

#[cfg(test)]
mod tests {
    use super::super::api::Api;
    use super::super::prompt::{Modality, PartKind};
    use super::super::testing::{parse, parts, refused};

    #[test]
    fn token_ids_are_the_prompt() {
        let body = r#"{"model":"m","token_ids":[1,2, 3],"cache_salt":"s","stream":true,
                       "sampling_params":{"n":1,"max_tokens":9,"x":{"max_tokens":1}}}"#;
        assert_eq!(parts(Api::VllmGenerate, body), [(PartKind::Tokens, "[1,2, 3]")]);
        let (parsed, kept) = parse(Api::VllmGenerate, body).unwrap();
        assert_eq!(parsed.prompt.parts[0].token_ids(&kept).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((parsed.stream, parsed.max_output_tokens), (true, Some(9)));
        assert_eq!(parsed.cache_salt.unwrap().bytes(&kept).as_ref(), b"s");
        assert!(!parsed.prompt.is_multimodal());
    }

    #[test]
    fn last_sampling_params_set_the_output_cap() {
        let table = [
            (r#"{"max_tokens":5}"#, Some(5)),
            (r#"{"max_tokens":5},"sampling_params":{}"#, None),
            (r#"{"max_tokens":5},"sampling_params":null"#, None),
            (r#"{"max_t\u006fkens":5,"max_tokens":[7]}"#, None),
            (r#"{"max_tokens":5,"n":7}"#, Some(5)),
            (r#"[5]"#, None),
            (r#"[{"max_tokens":5}]"#, None),
        ];
        for (params, want) in table {
            let body = format!(r#"{{"token_ids":[1],"max_tokens":3,"sampling_params":{params}}}"#);
            let (parsed, _) = parse(Api::VllmGenerate, &body).unwrap();
            assert_eq!(parsed.max_output_tokens, want, "{params}");
        }
    }

    #[test]
    fn features_are_hashes_with_their_places() {
        use Modality::*;
        type Row = (&'static str, &'static [(Option<Modality>, &'static str, Option<(u32, u32)>)]);
        let table: [Row; 12] = [
            (
                r#"{"mm_placeholders":{"audio":[{"offset":1,"length":2}],"image":[{"length":4,"offset":9},{"offset":5,"length":3}]},
                    "mm_hashes":{"image":["a","\u0062"],"audio":["c"]}}"#,
                &[
                    (Some(Audio), "c", Some((1, 3))),
                    (Some(Image), "b", Some((5, 8))),
                    (Some(Image), "a", Some((9, 13))),
                ],
            ),
            (
                r#"{"mm_hashes":{"image":["a"],"x":["b"],"video":["c"]}}"#,
                &[(Some(Image), "a", None), (Some(Video), "c", None), (None, "b", None)],
            ),
            (
                r#"{"mm_hashes":{"image":[null,"a"]},"mm_placeholders":{"image":[{},{"offset":1,"length":1}]}}"#,
                &[(Some(Image), "a", Some((1, 2)))],
            ),
            (r#"{"mm_hashes":{"image":["a"],"image":["b"]}}"#, &[(Some(Image), "b", None)]),
            (r#"{"mm_hashes":{"image":["a"]},"mm_hashes":{}}"#, &[]),
            (r#"{"mm_hashes":[["a"]]}"#, &[]),
            (r#"{"mm_hashes":{"image":{"x":"a"}}}"#, &[]),
            (r#"{"mm_hashes":{"image":[["a"]]}}"#, &[]),
            (r#"{"mm_hashes":{"image":"a"}}"#, &[]),
            (
                r#"{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":4294967295,"length":1}]}}"#,
                &[(Some(Image), "a", None)],
            ),
            (
                r#"{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[5,{"offset":1,"length":1}]}}"#,
                &[(Some(Image), "a", None)],
            ),
            (r#"{"mm_hashes":{"image":["a"]}},"features":null"#, &[]),
        ];
        for (features, want) in table {
            let body = format!(r#"{{"token_ids":[1],"features":{features}}}"#);
            let (parsed, kept) = parse(Api::VllmGenerate, &body).unwrap();
            let features = &parsed.prompt.features;
            let hashes: Vec<_> = features.iter().map(|feature| feature.hash.bytes(&kept)).collect();
            let got: Vec<_> = features
                .iter()
                .zip(&hashes)
                .map(|(feature, hash)| {
                    let tokens = feature.tokens.as_ref().map(|tokens| (tokens.start, tokens.end));
                    (feature.modality, std::str::from_utf8(hash).unwrap(), tokens)
                })
                .collect();
            assert_eq!(got, want, "{body}");
            assert_eq!(parsed.prompt.is_multimodal(), !want.is_empty());
        }
    }

    #[test]
    fn request_without_token_ids_is_refused() {
        let table = [
            "[1]",
            "{}",
            r#"{"token_ids":[]}"#,
            r#"{"token_ids":5}"#,
            r#"{"token_ids":"x"}"#,
            r#"{"token_ids":["x"]}"#,
            r#"{"token_ids":[1,-1]}"#,
            r#"{"token_ids":[1.5]}"#,
            r#"{"token_ids":[4294967296]}"#,
            r#"{"token_ids":[[1]]}"#,
            r#"{"prompt":"x"}"#,
        ];
        for text in table {
            refused(Api::VllmGenerate, text, "token_ids must be");
            refused(Api::SglangGenerate, text.replace("token_ids", "input_ids"), "input_ids must be");
        }
    }
}
