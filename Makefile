# `make demo` shows Usher at work, `make test` runs what CI runs.

CARGO ?= cargo
# Where Envoy is installed: a folder of the repository that git ignores.
USHER_ENVOY_DIR ?= .demo
STAGE := @deploy/ci/stage.sh

.PHONY: demo test fmt fmt-check clippy doc test-rust deny bench fuzz fuzz-corpus envoy

# Simulated servers, Usher and a real Envoy under a slice of a real trace.
# ARGS="--keep" leaves them running; `usher demo --help` lists the rest.
demo:
	$(CARGO) run --quiet --release --bin usher -- demo $(ARGS)

test: fmt-check clippy doc test-rust deny

fmt:
	$(CARGO) fmt

fmt-check:
	$(STAGE) format $(CARGO) fmt --check

clippy:
	$(STAGE) clippy $(CARGO) clippy --all-targets --locked -- -D warnings

doc:
	$(STAGE) documentation env RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --locked --quiet

# All tests, the end-to-end ones with a real Envoy included.
test-rust:
	$(STAGE) tests $(CARGO) test --locked

# Licences, bans and sources of the dependencies; advisories where their database can be had.
deny:
	$(STAGE) dependencies deploy/ci/deny.sh

bench:
	$(CARGO) bench --locked $(ARGS)

# Every fuzz target for ten minutes, or TARGET=name alone, for SECONDS_EACH seconds.
# CI replays the corpora: that is the test `fuzz_corpus`.
fuzz:
	@fuzz/fuzz.sh run "$(TARGET)" "$(SECONDS_EACH)"

# Takes what the runs of this clone found into the corpora, and minimises those.
fuzz-corpus:
	@fuzz/fuzz.sh corpus

# Installs Envoy and prints where it is.
envoy:
	@deploy/envoy/get.sh $(USHER_ENVOY_DIR)
