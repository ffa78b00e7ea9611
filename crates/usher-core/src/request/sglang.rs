//! SGLang's own generate, for whoever holds the tokenizer: its bodies.

use super::collect::{Format, Member};

/// `/generate`. It names no model: a server has one.
pub(super) static GENERATE: Format = Format {
    member: |name| match name {
        b"input_ids" => Member::Ids,
        b"sampling_params" => Member::Sampling(b"max_new_tokens"),
        b"stream" => Member::Stream,
        b"extra_key" => Member::CacheSalt,
        _ => Member::Other,
    },
    problem: "input_ids must be a non-empty list of token ids",
};

#[cfg(test)]
mod tests {
    use super::super::api::Api;
    use super::super::prompt::PartKind;
    use super::super::testing::{parse, parts, refused};

    #[test]
    fn input_ids_are_the_prompt_and_the_extra_key_the_salt() {
        let body = r#"{"input_ids":[7,8],"extra_key":"k","cache_salt":"no","model":"no","stream":true,
                       "sampling_params":{"max_new_tokens":9,"max_tokens":1}}"#;
        assert_eq!(parts(Api::SglangGenerate, body), [(PartKind::Tokens, "[7,8]")]);
        let (parsed, kept) = parse(Api::SglangGenerate, body).unwrap();
        assert_eq!((parsed.stream, parsed.max_output_tokens), (true, Some(9)));
        assert_eq!(parsed.cache_salt.unwrap().bytes(&kept).as_ref(), b"k");
        assert_eq!(parsed.model, None);
    }

    #[test]
    fn text_alone_is_refused() {
        refused(Api::SglangGenerate, r#"{"text":"hi"}"#, "input_ids must be");
    }
}
