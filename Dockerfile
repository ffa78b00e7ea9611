# Builds Usher without its tools (demo, sim, load, replay, compare, capacity compare) and puts it, alone, into an image without a shell.
# CI does not build this image yet: it has no container engine.

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev make && rm -rf /var/lib/apt/lists/*
WORKDIR /usher
COPY . .
ARG COMMIT=unknown
RUN USHER_COMMIT=$COMMIT cargo build --release --locked --package usher --no-default-features --features jemalloc

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /usher/target/release/usher /usher
USER nonroot
# ext_proc, gRPC health, metrics
EXPOSE 9002 9003 9090
ENTRYPOINT ["/usher", "serve"]
