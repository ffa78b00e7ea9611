//! `always-disagg-pd-decider` and `always-disagg-multimodal-decider`: deciders that look
//! at the request alone, or at nothing.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_core::endpoints::Candidates;
use usher_plugin::{Build, BuildContext, Context, Decider, Kind, PluginParts, PluginType, beta};

/// `always-disagg-pd-decider` in a configuration.
#[rustfmt::skip]
pub static PREFILL: PluginType = beta("always-disagg-pd-decider", &[Kind::Decider],
    "Lets another endpoint compute every prompt.",
    Build::Ignoring(always_disagg_pd_decider))
    .when("Decoding endpoints that must not compute prompts, and measurements.");

/// `always-disagg-multimodal-decider` in a configuration.
#[rustfmt::skip]
pub static MULTIMODAL: PluginType = beta("always-disagg-multimodal-decider", &[Kind::Decider],
    "Lets other endpoints encode whenever a prompt has images, videos or clips.",
    Build::Ignoring(always_disagg_multimodal_decider))
    .when("Encoders of their own.");

fn always_disagg_pd_decider(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts { decider: Some(Arc::new(AlwaysDecider)), ..PluginParts::bare() })
}

fn always_disagg_multimodal_decider(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts { decider: Some(Arc::new(MultimodalDecider)), ..PluginParts::bare() })
}

/// Always says yes.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysDecider;

impl Decider for AlwaysDecider {
    fn decide(&self, _cx: &Context<'_>, _candidates: &Candidates, _decode: Option<u32>) -> bool {
        true
    }

    fn is_unconditional(&self) -> bool {
        true
    }
}

/// Accepts prompts with anything but text.
#[derive(Clone, Copy, Debug, Default)]
pub struct MultimodalDecider;

impl Decider for MultimodalDecider {
    fn decide(&self, cx: &Context<'_>, _candidates: &Candidates, _decode: Option<u32>) -> bool {
        cx.request.prompt.is_multimodal()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use usher_core::endpoints::Store;
    use usher_core::request::{Headers, ParserKind, Parsers, Request, RequestParser};

    fn read(path: &str, body: &str) -> Request {
        let headers: Headers = [(":path", path)].into_iter().collect();
        let kinds =
            [ParserKind::OpenAi, ParserKind::Anthropic, ParserKind::VllmHttp, ParserKind::PassThrough];
        let mut parser = RequestParser::new(headers, &Parsers::new(&kinds));
        parser.push(body.to_owned().into());
        parser.finish().unwrap()
    }

    #[test]
    fn only_media_is_encoded_elsewhere() {
        let chat = |content: &str| {
            let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#);
            read("/v1/chat/completions", &body)
        };
        let table = [
            (chat(r#""image_url""#), false),
            (chat(r#"[{"type":"text","text":"hi"}]"#), false),
            (
                chat(r#"[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"http://x"}}]"#),
                true,
            ),
            (chat(r#"[{"type":"video_url","video_url":{"url":"http://x"}}]"#), true),
            // As in llm-d-router, nothing of such a block is read.
            (chat(r#"[{"type":"audio_url","audio_url":{"url":"http://x"}}]"#), false),
            (chat(r#"[{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]"#), true),
            (read("/v1/completions", r#"{"model":"m","prompt":"hi"}"#), false),
            (
                read(
                    "/inference/v1/generate",
                    r#"{"model":"m","token_ids":[1,2],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":0,"length":1}]}}}"#,
                ),
                true,
            ),
            // Nobody reads it.
            (read("/other", r#"{"image_url":"http://x"}"#), false),
        ];
        let candidates = Store::default().snapshot().all();
        for (request, multimodal) in &table {
            let cx = Context::new(request, 1, Duration::from_secs(1));
            for decode in [None, Some(0)] {
                assert_eq!(MultimodalDecider.decide(&cx, &candidates, decode), *multimodal, "{request:?}");
                assert!(AlwaysDecider.decide(&cx, &candidates, decode));
            }
        }
    }
}
