//! The workloads that there are.

/// A workload that follows from a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Independent requests that share a system prompt of 128 tokens and nothing else. Of
    /// their own they have 16 to 16,000 tokens, median 1,000.
    Poisson,
    /// 64 times the same prompt of 1,024 tokens, all at the same moment; the next 64, of
    /// another prompt, after 0.75 to 1.25 times the mean time.
    Bursts,
    /// As [`Bursts`](Self::Bursts), but every prompt is another one.
    DistinctBursts,
    /// Independent requests of 400 groups. A prompt's first half is that of its group, 128
    /// to 8,000 tokens, median 1,000; the second half, as long, is its own.
    HalfShared,
    /// Independent requests with one of 20 system prompts of 1,000 tokens, and 16 to
    /// 16,000 tokens of their own, median 1,000. For servers of which one is slow.
    SlowServer,
    /// Independent requests with one system prompt of 2,000 tokens, 32 to 400 tokens of
    /// their own, median 100, and responses of 300 to 2,000 tokens, median 800.
    LongAnswers,
    /// Independent requests of 64 to 2,000 tokens, median 300, that share nothing; responses
    /// of 500 to 8,000 tokens, median 2,000.
    Reasoning,
    /// Independent questions of 64 tokens about one of 900 documents of 4,000 to 12,000
    /// tokens, the number `n` asked for with a weight of `n^-0.6`: more than all caches hold.
    Documents,
    /// Users who talk in turns: one of 8 system prompts of 500 to 4,000 tokens, 2 to 12
    /// turns of 16 to 4,000 tokens, median 200, with all turns and responses before them;
    /// responses of 16 to 1,500 tokens, median 250; pauses of 8 s on average.
    Conversations,
    /// Agents: a plan, 2 to 4 branches of 2 to 5 calls each after tools took 1 s on average,
    /// a summary of the branches. A system prompt of 3,000 tokens that all share, tool
    /// results of 100 to 4,000 tokens, median 600; responses of 16 to 600 tokens, median 100.
    Agents,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Conversations,
        Self::Agents,
        Self::LongAnswers,
        Self::Reasoning,
        Self::Documents,
        Self::HalfShared,
        Self::Poisson,
        Self::SlowServer,
        Self::Bursts,
        Self::DistinctBursts,
    ];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Bursts => "bursts",
            Self::DistinctBursts => "distinct-bursts",
            Self::HalfShared => "half-shared",
            Self::SlowServer => "slow-server",
            Self::LongAnswers => "long-answers",
            Self::Reasoning => "reasoning",
            Self::Documents => "documents",
            Self::Conversations => "conversations",
            Self::Agents => "agents",
        }
    }

    /// Returns `true` if requests wait for the responses of others, so that the number of
    /// users says how many come.
    pub fn is_closed(self) -> bool {
        matches!(self, Self::Conversations | Self::Agents)
    }
}
