//! Messages of OTLP.

#![allow(missing_docs, reason = "generated; the fields are those of OTLP")]

tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
