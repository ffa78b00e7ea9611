# Envoy, Usher and simulated servers on this machine, under the requests of a real
# trace. Needs Rust, Python 3 and make. For example: make demo ARGS=--keep
.PHONY: demo
demo:
	cargo run --release --locked --bin usher -- demo $(ARGS)
