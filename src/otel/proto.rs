//! Messages of OTLP.

#![allow(missing_docs, clippy::enum_variant_names, reason = "generated; names and fields are those of OTLP")]

tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
