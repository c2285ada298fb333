# SPDX-License-Identifier: Apache-2.0
"""Writes random conversations as transformers renders and tokenizes them, and published templates.

    python tests/conversations/write_fixtures.py TRL LLAMA_CPP

Needs transformers and jinja2, which are not requirements of the project (the files here were
written with 5.23.0 and 3.1.6).

- tokenizer.json, conversations.json.gz: a small byte-level BPE with the pre-tokenization of Llama 3
  and the special tokens of Llama 3 and ChatML, and conversations by these two templates.
- templates.json.gz: published templates, with 50 conversations each. TRL is the unpacked wheel of
  trl 1.16.0, whose chat_templates/ has models' own templates byte for byte; LLAMA_CPP is
  llama_chat_format.py of llama-cpp-python's sources, which quotes those of other models with their
  repositories. SmolLM2's and Zephyr's are written below, as public repositories quote them.
"""

import gzip
import json
import random
import re
import sys
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

FOLDER = Path(__file__).parent / "fixtures"
WORDS = ["the", "old", "man", "sees", "a", "dog", "and", "walks", "home", "Straße", "猫", "😀"]
WORDS += ["x=1", "{", "}", "#", "###", "say:", "[1]", "1234"]
SPACES = (" ", " ", " ", " ", "\n", "\n\n", "  ", "\t")
WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SHORT_TEMPLATES = {
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

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
    "{{ '<|user|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'system' %}\n"
    "{{ '<|system|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}\n"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
FILES = {"qwen3": "qwen3", "qwen2.5": "qwen2_5", "llama3": "llama3", "gemma": "gemma"}
FILES |= {"phi3": "phi3"}
QUOTED = {"chatml": "CHATML_CHAT_TEMPLATE", "mistral": "MIXTRAL_INSTRUCT_CHAT_TEMPLATE"}
FIRST = {"llama3": "<|begin_of_text|>", "gemma": "<bos>", "mistral": "<s>"}
PARTS = ["the old man", " a dog.\n", "\n\n", "  ", "x = {{ y }}", "Straße 猫 😀", "{% if %}"]
PARTS += ["'\"\\n", "1,234", "### Response:", "user", "assistant\n"]
THOUGHTS = ["<think>\nso\n\nit is\n</think>\n\n", "<think>\n\n</think>\n\n", "no</think>\n"]


def main() -> None:
    write("conversations.json.gz", tokenized_conversations())
    write("templates.json.gz", published_templates(Path(sys.argv[1]), Path(sys.argv[2])))


def write(name: str, content: object) -> None:
    text = json.dumps(content, ensure_ascii=False)
    (FOLDER / name).write_bytes(gzip.compress(text.encode(), mtime=0))


def tokenized_conversations() -> list[dict]:
    rng = random.Random(0)
    tokenizer = small_tokenizer(rng)
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIALS[0], eos_token=SPECIALS[1]
    )
    records = []
    for number in range(200):
        messages = conversation_of_words(rng)
        record: dict = {"messages": messages}
        for name, template in SHORT_TEMPLATES.items():
            options = {"chat_template": template, "tokenize": False}
            text = fast.apply_chat_template(messages, **options)
            prompt = fast.apply_chat_template(messages[:-1], add_generation_prompt=True, **options)
            record[name] = {"text": text, "prompt": prompt}
            if number < 100:
                for key in ("text", "prompt"):
                    encoding = fast(record[name][key], add_special_tokens=False)
                    record[name][f"{key}_ids"] = encoding["input_ids"]
        records.append(record)
    return records


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


def conversation_of_words(rng: random.Random) -> list[dict[str, str]]:
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


def published_templates(trl: Path, llama_cpp: Path) -> dict[str, dict]:
    templates = {"smollm2": SMOLLM2, "zephyr": ZEPHYR}
    for name, file in FILES.items():
        templates[name] = (trl / "trl" / "chat_templates" / f"{file}.jinja").read_text()
    for name, constant in QUOTED.items():
        quoted = re.search(rf"^{constant} = (\".*\")$", llama_cpp.read_text(), re.MULTILINE)[1]
        templates[name] = json.loads(quoted)
    rng = random.Random(0)
    fixtures = {}
    for name, template in templates.items():
        tokens = {"bos_token": FIRST.get(name, ""), "eos_token": "{eos}"}
        records = []
        for _ in range(50):
            messages = random_messages(rng, name not in ("gemma", "mistral"), name == "qwen3")
            record: dict = {"messages": messages}
            for key, asked in (("text", messages), ("prompt", messages[:-1])):
                options = {"chat_template": template, "add_generation_prompt": key == "prompt"}
                (record[key],), _ = render_jinja_template([asked], **options, **tokens)
            records.append(record)
        fixtures[name] = {"template": template, "conversations": records}
    return fixtures


def random_messages(rng: random.Random, has_system: bool, thinks: bool) -> list[dict[str, str]]:
    """Random messages that end with an answer."""

    def text() -> str:
        return "".join(rng.choices(PARTS, k=rng.randint(1, 5))) + "."

    messages = [{"role": "system", "content": text()}] * (has_system and rng.random() < 0.5)
    for _ in range(rng.randint(1, 3)):
        thought = rng.choice(THOUGHTS) if thinks and rng.random() < 0.5 else ""
        messages.append({"role": "user", "content": text()})
        messages.append({"role": "assistant", "content": thought + text()})
    return messages


if __name__ == "__main__":
    main()
