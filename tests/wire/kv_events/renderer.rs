//! A server that renders prompts, as vLLM does: a token per byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// Until the test's process ends.
pub struct Renderer {
    pub url: String,
    /// Paths and models that were asked for.
    pub asked: Arc<Mutex<Vec<(String, String)>>>,
}

impl Renderer {
    /// Responds, or accepts connections and says nothing.
    pub fn start(responds: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::default();
        let calls = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming().flatten() {
                if responds {
                    let calls = Arc::clone(&calls);
                    std::thread::spawn(move || serve(stream, &calls));
                } else {
                    silent.push(stream);
                }
            }
        });
        Self { url, asked }
    }
}

fn serve(mut stream: TcpStream, calls: &Mutex<Vec<(String, String)>>) -> Option<()> {
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
        calls.lock().unwrap().push((path, model));
        let ids = |text: &Value| text.as_str().unwrap_or_default().bytes().map(u32::from).collect::<Vec<_>>();
        let rendered = match &body["messages"] {
            Value::Array(messages) => {
                json!({"token_ids": messages.iter().flat_map(|message| ids(&message["content"])).collect::<Vec<_>>()})
            }
            _ => json!([{"token_ids": ids(&body["prompt"])}]),
        }
        .to_string();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{rendered}",
            rendered.len()
        )
        .ok()?;
    }
}
