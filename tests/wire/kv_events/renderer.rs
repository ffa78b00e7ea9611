//! A server that returns the tokens of prompts, as vLLM does: one per byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

pub const COMPLETIONS: &str = "/v1/completions/render";
pub const CHATS: &str = "/v1/chat/completions/render";
pub const TOKENIZE: &str = "/tokenize";
/// Among the paths of a server: its chats begin as those of gpt-oss.
const GPT_OSS: &str = "gpt-oss";

/// Until the test's process ends.
pub struct Renderer {
    pub url: String,
    /// Paths and models that were asked for.
    pub asked: Arc<Mutex<Vec<(String, String)>>>,
}

impl Renderer {
    /// Accepts connections and says nothing.
    pub fn silent() -> Self {
        Self::start(None)
    }

    /// Renders prompts.
    pub fn rendering() -> Self {
        Self::with(&[COMPLETIONS, CHATS])
    }

    /// Responds to these paths.
    pub fn with(paths: &'static [&'static str]) -> Self {
        Self::start(Some(paths))
    }

    /// Tokenizes as vLLM does with gpt-oss, without render endpoints.
    pub fn of_gpt_oss() -> Self {
        Self::with(&[TOKENIZE, GPT_OSS])
    }

    fn start(paths: Option<&'static [&'static str]>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::default();
        let calls = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming().flatten() {
                if let Some(paths) = paths {
                    let calls = Arc::clone(&calls);
                    std::thread::spawn(move || serve(stream, paths, &calls));
                } else {
                    silent.push(stream);
                }
            }
        });
        Self { url, asked }
    }
}

fn serve(mut stream: TcpStream, paths: &[&str], calls: &Mutex<Vec<(String, String)>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first).ok()? == 0 {
            return None;
        }
        let path = first.split(' ').nth(1)?.to_owned();
        let mut len = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            match line.trim().to_ascii_lowercase().split_once(": ") {
                Some(("content-length", value)) => len = value.parse().ok()?,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body).ok()?;
        let body: Value = serde_json::from_slice(&body).ok()?;
        let model = body["model"].as_str().unwrap_or_default().to_owned();
        let (status, mut response) = respond(&path, &body, paths.contains(&path.as_str()));
        if paths.contains(&GPT_OSS) && body.get("messages").is_some() && response.get("tokens").is_some() {
            response = json!({"tokens": [200_006, 17360, 200_008, 3575], "token_strs": null});
        }
        calls.lock().unwrap().push((path, model));
        let response = response.to_string();
        write!(
            stream,
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{response}",
            response.len()
        )
        .ok()?;
    }
}

fn respond(path: &str, body: &Value, is_there: bool) -> (&'static str, Value) {
    if !is_there {
        return ("404 Not Found", json!({"detail": "Not Found"}));
    }
    let bytes = |text: &Value| text.as_str().unwrap_or_default().bytes().map(u32::from).collect::<Vec<_>>();
    let ids: Vec<u32> = match &body["messages"] {
        Value::Array(messages) => messages.iter().flat_map(|message| bytes(&message["content"])).collect(),
        _ => bytes(&body["prompt"]),
    };
    let rendered = json!({"token_ids": ids});
    match path {
        COMPLETIONS => ("200 OK", json!([rendered])),
        CHATS => ("200 OK", rendered),
        // A prompt is one text, where it is there at all.
        _ if body.get("prompt").is_some_and(|prompt| !prompt.is_string()) => {
            ("400 Bad Request", json!({"error": {"message": "Input should be a valid string"}}))
        }
        _ => ("200 OK", json!({"count": ids.len(), "max_model_len": 4096, "tokens": ids})),
    }
}
