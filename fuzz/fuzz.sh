#!/bin/sh
# fuzz.sh run [TARGET] [SECONDS]: fuzzes one target, or all of them one after the other.
# fuzz.sh corpus: takes what the runs found into the corpora that are checked in.
set -eu
cd "$(dirname "$0")/.."

# libFuzzer and the sanitizers need flags that the compiler keeps for its nightly
# releases. This lets the release that everything else is built with take them, so
# that no second toolchain is needed; what comes of it is only run here.
export RUSTC_BOOTSTRAP=1

if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "cargo-fuzz is missing; install it with: cargo install cargo-fuzz --locked" >&2
    exit 1
fi

# Longer inputs are slower and find nothing that shorter ones don't.
max_len=4096

targets() {
    for file in fuzz/fuzz_targets/*.rs; do
        basename "$file" .rs
    done
}

# Debug assertions and overflow checks are on: cargo-fuzz leaves them on unless told
# otherwise. The address sanitizer is its default, too.
run() {
    mkdir -p "fuzz/new/$1"
    leaks=1
    # The assertion of h2 that it passes over leaves an error behind as it unwinds.
    if [ "$1" = connection ]; then leaks=0; fi
    echo "== $1, $2 s"
    ASAN_OPTIONS="detect_leaks=$leaks" cargo fuzz run "$1" "fuzz/new/$1" "fuzz/corpus/$1" "fuzz/seeds/$1" -- \
        -dict="fuzz/dictionaries/$1.dict" -max_len="$max_len" -max_total_time="$2" \
        -timeout=60 -report_slow_units=5 -print_final_stats=1
}

# The seeds are written by hand and stay. Of everything else a smallest set is kept
# that reaches what the seeds do not.
minimise() {
    merged=$(mktemp -d)
    cp "fuzz/seeds/$1"/* "$merged"
    mkdir -p "fuzz/new/$1" "fuzz/corpus/$1"
    cargo fuzz run "$1" "$merged" "fuzz/corpus/$1" "fuzz/new/$1" -- \
        -set_cover_merge=1 -use_counters=0 -max_len="$max_len" -timeout=60
    (cd "fuzz/seeds/$1" && ls) | (cd "$merged" && xargs rm -f)
    # Only when there is a new one does the old one go.
    mkdir "$merged/corpus"
    find "$merged" -maxdepth 1 -type f -exec mv {} "$merged/corpus" \;
    if [ -z "$(ls "$merged/corpus")" ]; then
        echo "$1: the seeds reach all that the corpus does; it stays as it is" >&2
        return
    fi
    rm -rf "fuzz/corpus/$1" "fuzz/new/$1"
    cp -r "$merged/corpus" "fuzz/corpus/$1"
    rm -r "$merged"
    echo "== $1: $(ls "fuzz/corpus/$1" | wc -l) files"
}

case "${1:-}" in
run)
    failed=""
    for target in ${2:-$(targets)}; do
        run "$target" "${3:-600}" || failed="$failed $target"
    done
    if [ -n "$failed" ]; then
        echo "findings in:$failed" >&2
        exit 1
    fi
    ;;
corpus)
    for target in $(targets); do
        minimise "$target"
    done
    ;;
*)
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
    ;;
esac
