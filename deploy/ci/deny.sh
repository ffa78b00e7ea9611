#!/bin/sh
# Checks the dependencies: licences, bans and sources always, known vulnerabilities
# where the advisory database can be reached.
set -eu

if ! cargo deny --version >/dev/null 2>&1; then
    if [ "${CI:-}" = true ]; then
        echo "cargo-deny is missing, and CI has to check the licences" >&2
        exit 1
    fi
    echo "licences: not checked here, CI does; to check them: cargo install cargo-deny --locked"
    exit 0
fi

cargo deny --locked check --hide-inclusion-graph bans licenses sources
# A workspace of its own, with a lock file of its own; the rules are those of deny.toml here.
(cd examples/own-plugin && cargo deny --locked check --hide-inclusion-graph bans licenses sources)

if timeout 60 cargo deny --locked fetch db >/dev/null 2>&1; then
    cargo deny --locked check --disable-fetch advisories
    (cd examples/own-plugin && cargo deny --locked check --disable-fetch advisories)
else
    echo "advisories: not checked, their database can't be reached from here"
fi
