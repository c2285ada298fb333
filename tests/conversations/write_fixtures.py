# SPDX-License-Identifier: Apache-2.0
"""Writes random conversations as transformers renders and tokenizes them, for test_encoding.py.

    python tests/conversations/write_fixtures.py

Needs transformers and jinja2, which are not requirements of the project (the files here were
written with 5.23.0 and 3.1.6). The tokenizer is a small byte-level BPE with the pre-tokenization of
Llama 3 and the special tokens of both templates. The templates are those published with Llama 3 and
with models that use ChatML.
"""

import gzip
import json
import random
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(__file__).parent / "fixtures"
WORDS = ["the", "old", "man", "sees", "a", "dog", "and", "walks", "home", "Straße", "猫", "😀"]
WORDS += ["x=1", "{", "}", "#", "###", "say:", "[1]", "1234"]
SPACES = (" ", " ", " ", " ", "\n", "\n\n", "  ", "\t")
WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATES = {
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' "
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
}
SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
SPECIALS += ["<|eot_id|>", "<|im_start|>", "<|im_end|>"]


def main() -> None:
    rng = random.Random(0)
    FOLDER.mkdir(exist_ok=True)
    tokenizer = small_tokenizer(rng)
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    transformers_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIALS[0], eos_token=SPECIALS[1]
    )
    found = []
    for number in range(200):
        messages = conversation(rng)
        record = {"messages": messages}
        for name, template in TEMPLATES.items():
            asked = messages[:-1]
            text = transformers_tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False
            )
            prompt = transformers_tokenizer.apply_chat_template(
                asked, chat_template=template, tokenize=False, add_generation_prompt=True
            )
            record[name] = {"text": text, "prompt": prompt}
            if number < 100:
                text_ids, prompt_ids = (
                    transformers_tokenizer(one, add_special_tokens=False)["input_ids"]
                    for one in (text, prompt)
                )
                record[name] |= {"text_ids": text_ids, "prompt_ids": prompt_ids}
        found.append(record)
    with gzip.GzipFile(FOLDER / "conversations.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps(found, ensure_ascii=False).encode())


def small_tokenizer(rng: random.Random) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(WORD), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.train_from_iterator((random_text(rng) for _ in range(500)), trainer)
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in SPECIALS])
    return tokenizer


def conversation(rng: random.Random) -> list[dict[str, str]]:
    turns = [("system", random_text(rng))] if rng.random() < 0.4 else []
    for _ in range(rng.randint(1, 4)):
        turns += [("user", random_text(rng)), ("assistant", random_text(rng))]
    return [{"role": role, "content": content} for role, content in turns]


def random_text(rng: random.Random) -> str:
    """Words separated by white space, sometimes with white space at the ends."""
    text = rng.choice(WORDS)
    for _ in range(rng.randint(0, 12)):
        text += rng.choice(SPACES) + rng.choice(WORDS)
    around = [rng.choice(SPACES) if rng.random() < 0.1 else "" for _ in range(2)]
    return around[0] + text + around[1]


if __name__ == "__main__":
    main()
