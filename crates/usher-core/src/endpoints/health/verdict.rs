//! Verdict on a server, from the headers of its response.

/// Status of a response, from its headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseStatus {
    /// `:status`.
    pub http: Option<u16>,
    /// `grpc-status`: of a gRPC call that failed before its first message, whose HTTP
    /// status says nothing.
    pub grpc: Option<u32>,
    /// The gateway responded because its own limits were reached (`x-envoy-overloaded`).
    pub overloaded: bool,
}

/// Meaning of a response's status for the server that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Success.
    Good,
    /// Failure with this HTTP status, or the one that a gRPC status corresponds to.
    Failed(u16),
    /// Caused by the request or the gateway.
    Unclear,
}

impl ResponseStatus {
    /// Meaning for the server that was asked: 500, 502, 503 and 504 are failures, also those
    /// that a gateway makes up because it can't reach the server, and so is a 200 whose
    /// `grpc-status` corresponds to one; 2xx and 3xx without a gRPC error are successes. Everything
    /// else is about the request: a server may refuse one that it can't serve (4xx, 501), and
    /// works or doesn't.
    pub fn verdict(self) -> Verdict {
        if self.overloaded {
            return Verdict::Unclear;
        }
        match (self.http, self.grpc) {
            (Some(status @ (500 | 502..=504)), _) => Verdict::Failed(status),
            (Some(200..400), None | Some(0)) => Verdict::Good,
            (Some(200), Some(grpc)) => of_grpc(grpc),
            _ => Verdict::Unclear,
        }
    }
}

/// As the numbers of `google.rpc.Code` correspond to HTTP, without DEADLINE_EXCEEDED: the
/// deadline is the client's.
fn of_grpc(status: u32) -> Verdict {
    match status {
        // UNKNOWN, INTERNAL, DATA_LOSS
        2 | 13 | 15 => Verdict::Failed(500),
        // UNAVAILABLE, also what Envoy makes of a server that it can't reach.
        14 => Verdict::Failed(503),
        _ => Verdict::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_server_side_statuses_count_as_failures() {
        let table = [
            ((Some(200), None), Verdict::Good),
            ((Some(302), None), Verdict::Good),
            ((Some(200), Some(0)), Verdict::Good),
            ((Some(500), None), Verdict::Failed(500)),
            ((Some(502), None), Verdict::Failed(502)),
            ((Some(503), None), Verdict::Failed(503)),
            ((Some(504), None), Verdict::Failed(504)),
            ((Some(200), Some(14)), Verdict::Failed(503)),
            ((Some(200), Some(13)), Verdict::Failed(500)),
            ((Some(200), Some(2)), Verdict::Failed(500)),
            ((Some(200), Some(3)), Verdict::Unclear),
            ((Some(200), Some(4)), Verdict::Unclear),
            ((Some(400), None), Verdict::Unclear),
            ((Some(404), None), Verdict::Unclear),
            ((Some(429), None), Verdict::Unclear),
            ((Some(501), None), Verdict::Unclear),
            ((Some(100), None), Verdict::Unclear),
            ((None, None), Verdict::Unclear),
        ];
        for ((http, grpc), verdict) in table {
            let status = ResponseStatus { http, grpc, overloaded: false };
            assert_eq!(status.verdict(), verdict, "{status:?}");
            assert_eq!(ResponseStatus { overloaded: true, ..status }.verdict(), Verdict::Unclear);
        }
    }
}
