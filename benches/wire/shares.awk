# Shares of CPU time by part of the picker, from `perf script --no-inline` of
# `perf record -F 2999 --call-graph dwarf,8192 -p PICKER`. A sample belongs to the kernel, or else
# to HTTP/2 and the runtime if one of their frames comes before any of ours, or else to the
# innermost frame of a part that is named here.

function part(frame) {
    if (frame ~ /usher::scrape/) return "scraping"
    if (frame ~ /usher::record/) return "decision records"
    if (frame ~ /prefix::|approx_prefix/) return "prefix index"
    if (frame ~ /usher::schedule|usher_plugin/) return "scheduling"
    if (frame ~ /usher::flow|::health::/) return "flow control, outlier detection"
    if (frame ~ /usher_core::request/) return "parsing"
    if (frame ~ /usher_wire/) return "ext_proc messages"
    if (frame ~ /usher::/ && frame !~ /h2::|hyper::|tokio::/) return "streams"
    return ""
}

function count() {
    if (frames == 0) return
    samples++
    share = "other"
    if (stack[1] ~ /kernel\.kallsyms/) {
        share = "kernel"
    } else {
        for (i = 1; i <= frames; i++) {
            if ((name = part(stack[i])) != "") { share = name; break }
            if (stack[i] ~ /h2::|hyper::|tokio::/) { share = "HTTP/2 and runtime"; break }
        }
    }
    shares[share]++
    frames = 0
}

/^$/ { count(); next }
/^[ \t]/ { stack[++frames] = $0; next }
{ frames = 0 }

END {
    count()
    for (share in shares) printf "%5.1f %%  %s\n", 100 * shares[share] / samples, share
}
