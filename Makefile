# `make demo` shows Usher at work, `make test` runs what CI runs.

CARGO ?= cargo
# Where Envoy is installed: a folder of the repository that git ignores.
USHER_ENVOY_DIR ?= .demo
STAGE := @deploy/ci/stage.sh

.PHONY: demo test fmt fmt-check clippy doc docs-accept test-rust chart chart-accept crds-accept deny memory instructions instructions-accept bench bench-wire bench-live screenshot fuzz fuzz-corpus envoy

# Simulated servers, Usher and a real Envoy under a slice of a real trace.
# ARGS="--keep" leaves them running; ARGS=--help lists the rest.
demo:
	@CARGO="$(CARGO)" deploy/demo.sh $(ARGS)

test: fmt-check clippy doc chart test-rust instructions deny

fmt:
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path examples/own-plugin/Cargo.toml

fmt-check:
	$(STAGE) format $(CARGO) fmt --all --check
	@$(CARGO) fmt --check --manifest-path examples/own-plugin/Cargo.toml

clippy:
	$(STAGE) clippy $(CARGO) clippy --all-targets --locked -- -D warnings
	$(STAGE) "clippy without the tools" $(CARGO) clippy --package usher --lib --bins --no-default-features --features jemalloc --locked -- -D warnings
	$(STAGE) "clippy of a plugin of another package" env CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}" \
		$(CARGO) clippy --all-targets --locked --manifest-path examples/own-plugin/Cargo.toml -- -D warnings

doc:
	$(STAGE) documentation env RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --locked --quiet

# Writes the pages of docs/reference from the code.
docs-accept:
	USHER_ACCEPT=1 $(CARGO) test --locked --quiet --test docs --test wire reference::

# The memory budget of a release build. `make test` runs the same on a debug build, with larger budgets.
memory:
	$(CARGO) build --locked --release --bin usher
	USHER_BIN="$${CARGO_TARGET_DIR:-$(CURDIR)/target}/release/usher" $(CARGO) test --locked --test wire memory::

# All tests, the end-to-end ones with a real Envoy included. In CI none may hang for as long as CI takes.
test-rust:
	$(STAGE) tests $(if $(CI),env CARGO="$(CARGO)" deploy/ci/tests.sh,$(CARGO) test --locked)
	$(STAGE) "a plugin of another package" env CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}" \
		CARGO_PROFILE_DEV_DEBUG=line-tables-only $(CARGO) test --locked --manifest-path examples/own-plugin/Cargo.toml $(if $(CI),--config 'target."cfg(all())".runner = "$(CURDIR)/deploy/ci/limit.sh"')

# The Helm chart and the overlays for kustomize, where there is a helm; the tests check what
# they render.
chart:
	$(STAGE) chart deploy/ci/chart.sh

# Writes the chart's copies of deploy/observability, and deploy/kustomize from the chart.
chart-accept:
	rm -rf deploy/chart/observability
	mkdir -p deploy/chart/observability/dashboards
	cp deploy/observability/rules.yaml deploy/chart/observability/
	cp deploy/observability/dashboards/*.json deploy/chart/observability/dashboards/
	USHER_ACCEPT=1 CI=true $(CARGO) test --locked --quiet --test kubernetes kustomize

# Writes the definitions of custom resources from the types.
crds-accept:
	USHER_ACCEPT=1 $(CARGO) test --locked --quiet --test rollout definitions

# Licences, bans and sources of the dependencies; advisories where their database can be had.
deny:
	$(STAGE) dependencies deploy/ci/deny.sh

# Instructions that a request costs, compared with benches/instructions/expected.txt.
instructions:
	$(STAGE) "instruction counts" deploy/ci/instructions.sh check

# Writes down what they are now.
instructions-accept:
	$(STAGE) "instruction counts" deploy/ci/instructions.sh accept

bench:
	$(CARGO) bench --locked $(ARGS)

# The limit and Usher in turns, directly and through a real Envoy; writes docs/contributing/benchmarks.md.
# PEER='name=COMMAND' adds a picker that takes the flags of `usher serve`.
# ARGS="--only small-direct --rounds 1 --quick" tries it; ARGS=--help lists the rest.
export PEER
bench-wire:
	$(CARGO) bench --locked --bench wire -- --envoy-dir $(USHER_ENVOY_DIR) $(if $(PEER),--peer "$$PEER") $(ARGS)

# Whether replay is true: the same workloads live, behind a real Envoy, and in replay.
# ARGS="--cases long-answers --policies llm-d-router-default" does a part; ARGS=--help lists the rest.
bench-live:
	$(CARGO) bench --locked --bench live -- --envoy-dir $(USHER_ENVOY_DIR) $(ARGS)

# The picture of the page on the admin port, of simulated servers behind a real Envoy. Needs chromium.
screenshot:
	$(CARGO) test --locked --quiet --test shell page::screenshot -- --ignored

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
