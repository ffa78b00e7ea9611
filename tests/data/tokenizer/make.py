"""Makes the tokenizers of these tests, and what they and the chat templates have to come to.

    pip install tokenizers==0.23.3 jinja2==3.1.6
    python tests/data/tokenizer/make.py

The vocabularies are trained on the guides of this repository. Token ids are those of the PyPI package
`tokenizers`, texts of chats those of jinja2 in the environment that transformers' apply_chat_template sets up.
"""

import json
import pathlib
import random

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
CORPUS = sorted(HERE.parents[2].glob("docs/guide/*.md"))[:12]
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>", "<|header|>", "<|end|>"]
TEXTS = [
    "",
    "a",
    " ",
    "Hello, world!",
    "Requests wait for 50 ms at most, and it's 12345678 tokens.\n\nThen:\n    - one\n\t- two  \n",
    "Straße, naïve café, cafe\u0301, Ωμέγα, 日本語のテキスト, 한국어, 👩\u200d🚀🎉",
    "<|im_start|>user\nWhat is <|im_end|>?<|im_end|>\n<|im_start|>assistant\n",
    "x<|eos|><|eos|>  <|bos|>y <|im_star",
    "I'LL we'Ve don't  \r\n\r\n  end   ",
    "<tool> a <tool>b\x00\x7f\u00a0\u3000c",
]


class Generation(Extension):
    """transformers' tag around what the assistant says."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise TemplateError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    return made


def byte_level():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(WORDS), "isolated", False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(path) for path in CORPUS], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False), "  of  "])
    bos = tokenizer.token_to_id("<|bos|>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", bos)])
    return tokenizer


def sentence_piece():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)], show_progress=False
    )
    tokenizer.train([str(path) for path in CORPUS[:4]], trainer)
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True, normalized=False), AddedToken("<|im_end|>", special=True, normalized=False, rstrip=True)])
    return tokenizer


def message_cases():
    weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Zürich", "<b>&'x'"]}, "days": {"type": "number", "default": 1.0}}}, "strict": True}}
    shown = {"type": "function", "function": {"name": "weather", "description": None, "parameters": weather["function"]["parameters"], "strict": True}}
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich", "days": 2}'}}
    parsed = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}}
    hello = [{"role": "system", "content": " Be short. "}, {"role": "user", "content": "Hello <|im_end|> \"you\"\n"}]
    turns = hello + [{"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi."}, {"role": "user", "content": "More?"}]
    tools = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "{\"t\": 21}"}]
    seen = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "", "tool_calls": [parsed]}, {"role": "tool", "tool_call_id": "c1", "content": "{\"t\": 21}"}]
    # Body of a request, and what a template is given: messages, and more.
    yield {"messages": hello}, hello, {}
    yield {"messages": turns}, turns, {}
    yield {"messages": turns[1:], "add_generation_prompt": False}, turns[1:], {"add_generation_prompt": False}
    yield {"messages": tools, "tools": [weather]}, seen, {"tools": [shown]}
    yield {"messages": hello, "chat_template_kwargs": {"enable_thinking": False, "date_string": "1 May 2026"}}, hello, {"enable_thinking": False, "date_string": "1 May 2026"}
    parts = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    yield {"messages": parts}, [{"role": "user", "content": "one\ntwo"}], {}
    last = [{"role": "user", "content": "Say A."}, {"role": "assistant", "content": "A "}]
    yield {"messages": last, "add_generation_prompt": False, "continue_final_message": True}, last, {"add_generation_prompt": False, "cut": "A "}


def as_parts(messages, body):
    made = []
    for message, sent in zip(messages, body["messages"]):
        content = sent["content"]
        texts = [] if content is None else [content] if isinstance(content, str) else [part["text"] for part in content]
        made.append({**message, "content": [{"type": "text", "text": text} for text in texts]})
    return made


def chats():
    special = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    for name in ["chatml", "parts", "turns"]:
        template = environment().from_string((HERE / f"{name}.jinja").read_text())
        for body, messages, more in message_cases():
            more = {"tools": None, "documents": None, "add_generation_prompt": True, **special, **more}
            cut = more.pop("cut", None)
            if name == "parts":
                messages = as_parts(messages, body)
            try:
                text = template.render(messages=messages, **more)
            except TemplateError:
                text = None
            if cut is not None and text is not None:
                start = text.rindex(cut.strip())
                whole = cut.lstrip()
                text = text[: start + (len(whole) if text[start : start + len(whole)] == whole else len(cut.strip()))]
            yield {"template": name, "body": body, "text": text}


def main():
    made = {"bytes": byte_level(), "spaces": sentence_piece()}
    for name, tokenizer in made.items():
        tokenizer.save(str(HERE / f"{name}.json"), pretty=False)
    config = {
        "bos_token": {"__type": "AddedToken", "content": "<|bos|>"},
        "eos_token": "<|eos|>",
        "chat_template": (HERE / "chatml.jinja").read_text(),
    }
    (HERE / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
    rows = list(chats())
    texts = TEXTS + [row["text"] for row in rows if row["text"]]
    ids = [{"text": text, **{name: t.encode(text).ids for name, t in made.items()}} for text in texts]
    reference = {"texts": ids, "chats": rows}
    (HERE / "reference.json").write_text(json.dumps(reference, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
