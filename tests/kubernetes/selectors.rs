//! Selectors that Usher takes at its start are those that the API server takes.

use std::ffi::OsString;

use http::Request;
use serde_json::Value;
use usher::cli::{CliError, Command, parse};

use crate::server::Server;

fn taken(selector: &str) -> bool {
    let flags = ["usher", "serve", "--endpoint-target-ports=1", "--endpoint-selector", selector];
    match parse(flags.map(OsString::from)) {
        Ok(Command::Serve(args)) => args.settings(Default::default()).is_ok(),
        Err(CliError::Arguments(_)) => false,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usher_and_the_api_server_agree_on_selectors() {
    let Some(server) = Server::shared().await else { return };
    let client = server.client().await;
    let long = "x".repeat(64);
    let (key, value) = (format!("{long}=a"), format!("a={long}"));
    let prefix = format!("{}/a", "y".repeat(254));
    let good = [
        "app",
        "!app",
        "! app",
        "app=m",
        "app = m",
        "app==m",
        "app!=m",
        "app=",
        "app=,x",
        "app!=",
        "a=1,b=2,!c",
        "app in (m,n),!canary",
        "app notin(m)",
        "app in (,)",
        "app in ()",
        "app in (m,)",
        "app in ( m , n )",
        "in in (in)",
        "notin",
        "in=notin",
        "example.com/app=m",
        "a.b-c/D_e.f",
        "app>1",
        "app<1",
        "app=in",
        " app ",
        "x in (notin,in)",
        "exists",
    ];
    let bad = [
        "app=m,",
        ",app",
        "app,,b",
        "app in",
        "app in (m",
        "app in m",
        "app in (m n)",
        "app m",
        "app=m n",
        "!app=m",
        "!",
        "=m",
        "app===m",
        "app=!m",
        "app>m",
        "app>",
        "app<-1",
        "app<+1",
        "app<1.5",
        "app=-m",
        "app=m-",
        "-app",
        "app.",
        "a/b/c",
        "/app",
        "app/",
        "Example.com/app",
        "a_b.com/app",
        "app=ä",
        "äpp",
        "app=m;b",
        "(app)",
        "app=(m)",
        "app in ((m))",
        "app!m",
        key.as_str(),
        value.as_str(),
        prefix.as_str(),
    ];
    let mut differ = Vec::new();
    for (selectors, expected) in [(&good[..], true), (&bad[..], false)] {
        for selector in selectors {
            let query: String = selector.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let path = format!("/api/v1/namespaces/default/pods?limit=1&labelSelector={query}");
            let response = client.request::<Value>(Request::get(path).body(Vec::new()).unwrap()).await;
            if (response.is_ok(), taken(selector)) != (expected, expected) {
                differ.push((*selector, expected, taken(selector), response.err()));
            }
        }
    }
    assert!(differ.is_empty(), "selector, expected, Usher, the API server: {differ:#?}");
}
