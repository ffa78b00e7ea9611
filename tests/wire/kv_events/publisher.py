"""An engine's KV events by libzmq and msgpack: a PUB socket, and a ROUTER socket that replays, as vLLM has them.

    publisher.py ADDRESS PORT REPLAY_PORT FORM

Ports may be 0; the first line of the output has those that were taken. A line of the input is JSON with one event, which
becomes a batch: {"store": [FIRST, END], "parent": TOKEN}, {"remove": [FIRST, END]} or {"clear": true}. Blocks are those of
tokens that count up, and a parent is named by its last token. With "lose": true the batch is kept for replays only. A line
of the output follows once it is sent.

Forms: array (of vLLM up to 0.25: arrays, hashes as numbers, replays without a topic), map (events as maps, hashes as bytes,
replays with a topic), and maps (batches as maps, too).
"""

import hashlib
import json
import sys
import time

import msgpack
import zmq

BLOCK = 4
TOPIC = b"kv@engine@m"
END = (-1).to_bytes(8, "big", signed=True)

address, port, replay_port, form = sys.argv[1:]


def block_hash(last):
    digest = hashlib.sha256(str(last).encode()).digest()
    return int.from_bytes(digest[-8:], "big") if form == "array" else digest


def hashes(first, end):
    return [block_hash(last) for last in range(first + BLOCK - 1, end, BLOCK)]


def event(line):
    """The tag and the fields of an event, in vLLM's order."""
    if "store" in line:
        first, end = line["store"]
        parent = line.get("parent")
        return {
            "type": "BlockStored",
            "block_hashes": hashes(first, end),
            "parent_block_hash": None if parent is None else block_hash(parent),
            "token_ids": list(range(first, end)),
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": None,
        }
    if "remove" in line:
        return {"type": "BlockRemoved", "block_hashes": hashes(*line["remove"]), "medium": "GPU"}
    return {"type": "AllBlocksCleared"}


def batch(line):
    fields = event(line)
    events = [list(fields.values()) if form == "array" else fields]
    if form == "maps":
        return {"ts": time.time(), "events": events, "data_parallel_rank": 0}
    return [time.time(), events, 0]


def bound(socket, wanted):
    socket.bind(f"tcp://{address}:{'*' if wanted == '0' else wanted}")
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1]


context = zmq.Context()
publisher, replays = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
print(bound(publisher, port), bound(replays, replay_port), flush=True)

kept = []
poller = zmq.Poller()
poller.register(replays, zmq.POLLIN)
poller.register(sys.stdin.fileno(), zmq.POLLIN)
while True:
    ready = dict(poller.poll())
    if replays in ready:
        identity, delimiter, start = replays.recv_multipart()
        assert delimiter == b"", delimiter
        topic = [] if form == "array" else [TOPIC]
        for number, payload in enumerate(kept):
            if number >= int.from_bytes(start, "big"):
                replays.send_multipart([identity, b"", *topic, number.to_bytes(8, "big"), payload])
        replays.send_multipart([identity, b"", *topic, END, b""])
    if sys.stdin.fileno() in ready:
        line = sys.stdin.readline()
        if not line:
            break
        line = json.loads(line)
        number, payload = len(kept).to_bytes(8, "big"), msgpack.packb(batch(line))
        kept.append(payload)
        if not line.get("lose"):
            publisher.send_multipart([TOPIC, number, payload])
        print("sent", flush=True)
