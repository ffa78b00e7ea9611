//! The page for browsers: files that are compiled in, and the state of the pool that they show.
//!
//! Each second [`Feed`] sends what changed. The page asks `/decisions` for the rest. It needs
//! nothing from elsewhere, and puts text into the document as text only: names in it are chosen by clients.

mod rows;
mod state;

use std::sync::Arc;

use super::feed::Feed;
use super::routes::{Asset, Routes};

pub use state::{KvEvents, Part, Shown};

const SCRIPT: &str = "text/javascript; charset=utf-8";

const INDEX: Asset =
    Asset { path: "/", content_type: "text/html; charset=utf-8", text: include_str!("page/index.html") };

/// A script of the page.
macro_rules! script {
    ($name:literal) => {
        Asset {
            path: concat!("/ui/", $name),
            content_type: SCRIPT,
            text: include_str!(concat!("page/", $name)),
        }
    };
}

const FILES: [Asset; 15] = [
    Asset {
        path: "/ui/style.css",
        content_type: "text/css; charset=utf-8",
        text: include_str!("page/style.css"),
    },
    Asset { path: "/ui/icon.svg", content_type: "image/svg+xml", text: include_str!("page/icon.svg") },
    script!("app.js"),
    script!("decisions.js"),
    script!("dom.js"),
    script!("endpoints.js"),
    script!("events.js"),
    script!("explain.js"),
    script!("feed.js"),
    script!("panels.js"),
    script!("problems.js"),
    script!("rates.js"),
    script!("replicas.js"),
    script!("shared.js"),
    script!("stream.js"),
];

/// With the page about a pool at `/`, which [`with_index`](Routes::with_index) has made.
#[must_use]
pub fn with_page(routes: Routes, shown: Shown) -> Routes {
    let budget = Arc::clone(&shown.budget);
    let shown = Arc::new(shown);
    let feed = Feed::new(budget, move || {
        let mut renderer = state::Renderer::new(Arc::clone(&shown));
        Box::new(move || renderer.render())
    });
    routes.with_page_for_browsers(&INDEX, &FILES, ("/events", Arc::new(feed)))
}
