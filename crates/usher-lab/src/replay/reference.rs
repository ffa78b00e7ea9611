//! Policies of others to compare with. They know more than any real picker: caches as they
//! are at the moment of the decision, and every request until it ends.

use std::collections::HashMap;

use rand::RngExt;
use rand::rngs::StdRng;

use super::requests::Prepared;
use crate::sim::Engine;

/// A formula of another picker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formula {
    /// LMetric's product (arXiv 2603.15202): prompt tokens yet to be computed there, with
    /// this request's, times requests there, with this one.
    Product,
    /// Cost of the KV router of NVIDIA Dynamo with its default weight of 1: blocks of
    /// prompts yet to be computed plus blocks of requests that decode, with this request's.
    BlockCost,
}

/// One of these formulas at work.
#[derive(Debug)]
pub struct Reference {
    formula: Formula,
    rng: StdRng,
    servers: Vec<usize>,
    loads: Vec<Load>,
    placed: HashMap<usize, Placed>,
}

/// Requests that a server has.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Prompt tokens yet to be computed.
    uncached: u64,
    requests: u64,
    blocks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Placed {
    server: usize,
    uncached: u64,
    blocks: u64,
}

impl Reference {
    pub(super) fn new(formula: Formula, servers: usize, rng: StdRng) -> Self {
        let loads = vec![Load::default(); servers];
        Self { formula, rng, servers: (0..servers).collect(), loads, placed: HashMap::new() }
    }

    pub(super) fn set_servers(&mut self, numbers: Vec<usize>) {
        let most = numbers.iter().max().map_or(0, |most| most + 1);
        self.loads.resize(self.loads.len().max(most), Load::default());
        self.servers = numbers;
    }

    /// The cheapest server; of equals any.
    pub(super) fn pick(&mut self, position: usize, request: &Prepared, engines: &[Engine]) -> Option<usize> {
        let mut best: Option<(f64, Placed)> = None;
        let mut equals = 0u32;
        for &server in &self.servers {
            let Some(engine) = engines.get(server) else { continue };
            let size = engine.config().block_size;
            let blocks = request.blocks(size);
            let prompt_blocks = (request.prompt_tokens / size) as usize;
            let cached = engine.kv().matched(&blocks[..blocks.len().min(prompt_blocks)]) as u64;
            let uncached = u64::from(request.prompt_tokens).saturating_sub(cached * u64::from(size));
            let placed = Placed { server, uncached, blocks: u64::from(request.prompt_tokens.div_ceil(size)) };
            let cost = self.cost(&placed, size);
            let least = best.map_or(f64::INFINITY, |(least, _)| least);
            if cost < least {
                (best, equals) = (Some((cost, placed)), 1);
            } else if cost == least {
                equals += 1;
                if self.rng.random_range(0..equals) == 0 {
                    best = Some((cost, placed));
                }
            }
        }
        let (_, placed) = best?;
        let load = &mut self.loads[placed.server];
        load.uncached += placed.uncached;
        load.requests += 1;
        load.blocks += placed.blocks;
        self.placed.insert(position, placed);
        Some(placed.server)
    }

    fn cost(&self, placed: &Placed, block_size: u32) -> f64 {
        let load = self.loads[placed.server];
        let uncached = (load.uncached + placed.uncached) as f64;
        match self.formula {
            Formula::Product => (1.0 + uncached) * (1 + load.requests) as f64,
            Formula::BlockCost => uncached / f64::from(block_size) + (load.blocks + placed.blocks) as f64,
        }
    }

    pub(super) fn first_token(&mut self, position: usize) {
        if let Some(placed) = self.placed.get_mut(&position) {
            self.loads[placed.server].uncached -= std::mem::take(&mut placed.uncached);
        }
    }

    pub(super) fn ended(&mut self, position: usize) {
        if let Some(placed) = self.placed.remove(&position) {
            let load = &mut self.loads[placed.server];
            load.uncached -= placed.uncached;
            load.requests -= 1;
            load.blocks -= placed.blocks;
        }
    }
}
