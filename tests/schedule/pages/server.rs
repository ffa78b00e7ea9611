//! A server that sends the bytes that it is told to send.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// A part of what a server does when it is asked.
#[derive(Clone)]
pub enum Step {
    Send(Vec<u8>),
    /// The same so many times.
    Repeat(Vec<u8>, usize),
    /// A byte per second.
    Drip(Vec<u8>),
    Hang,
    Close,
}

type Responder = dyn Fn(&str) -> Vec<Step> + Send + Sync;

pub struct Server {
    pub address: SocketAddr,
    /// First lines of the requests.
    pub requests: watch::Receiver<Vec<String>>,
    pub connections: watch::Receiver<usize>,
    /// The most bytes that anybody took of what is sent many times.
    pub taken: Arc<AtomicUsize>,
}

impl Server {
    /// A server that answers a request, of which it gets the head.
    pub async fn start(respond: impl Fn(&str) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::listen(None, Arc::new(respond)).await
    }

    /// The same over TLS.
    pub async fn start_tls(
        acceptor: TlsAcceptor,
        respond: impl Fn(&str) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        Self::listen(Some(acceptor), Arc::new(respond)).await
    }

    async fn listen(tls: Option<TlsAcceptor>, respond: Arc<Responder>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (heard, requests) = watch::channel(Vec::new());
        let (opened, connections) = watch::channel(0);
        let taken = Arc::new(AtomicUsize::new(0));
        let most = Arc::clone(&taken);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                opened.send_modify(|count| *count += 1);
                let (respond, heard, tls) = (Arc::clone(&respond), heard.clone(), tls.clone());
                let most = Arc::clone(&most);
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, &*respond, &heard, &most).await,
                        Some(tls) => {
                            // A client that refuses the certificate is part of the tests.
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, &*respond, &heard, &most).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, requests, connections, taken }
    }

    pub fn count(&self) -> usize {
        self.requests.borrow().len()
    }

    /// Waits for more requests. The one before the last is then done with, as an endpoint
    /// has one scrape at a time.
    pub async fn more(&self, count: usize) {
        let want = self.count() + count;
        let mut requests = self.requests.clone();
        let wait = requests.wait_for(|requests| requests.len() >= want);
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("in time").unwrap();
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    respond: &Responder,
    heard: &watch::Sender<Vec<String>>,
    most: &AtomicUsize,
) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        let head = String::from_utf8(head).unwrap();
        heard.send_modify(|requests| requests.push(head.lines().next().unwrap().to_owned()));
        for step in respond(&head) {
            let sent = match step {
                Step::Send(bytes) => stream.write_all(&bytes).await,
                Step::Repeat(bytes, times) => repeat(&mut stream, &bytes, times, most).await,
                Step::Drip(bytes) => drip(&mut stream, &bytes).await,
                Step::Hang => std::future::pending().await,
                Step::Close => return,
            };
            // The scraper may have had enough.
            if sent.is_err() || stream.flush().await.is_err() {
                return;
            }
        }
    }
}

async fn repeat(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    times: usize,
    most: &AtomicUsize,
) -> std::io::Result<()> {
    for time in 1..=times {
        stream.write_all(bytes).await?;
        most.fetch_max(time * bytes.len(), Relaxed);
    }
    Ok(())
}

async fn drip(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    for byte in bytes {
        stream.write_all(&[*byte]).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// A response with these lines in its head, besides the length.
pub fn with(lines: &str, body: &[u8]) -> Vec<Step> {
    let head = format!("HTTP/1.1 200 OK\r\n{lines}content-length: {}\r\n\r\n", body.len());
    vec![Step::Send([head.as_bytes(), body].concat())]
}

pub fn ok(body: &str) -> Vec<Step> {
    with("", body.as_bytes())
}

/// A page of vLLM with this queue.
pub fn page(waiting: u32) -> String {
    format!(
        "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{engine=\"0\"}} {waiting}\n\
         # TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{engine=\"0\"}} 7\n\
         vllm:kv_cache_usage_perc 0.5\nvllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"100\"}} 1\n"
    )
}
