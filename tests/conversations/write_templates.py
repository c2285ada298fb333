# SPDX-License-Identifier: Apache-2.0
"""Writes published chat templates, and 50 random conversations as transformers renders them.

    python tests/conversations/write_templates.py TRL LLAMA_CPP

TRL is the unpacked wheel of trl 1.16.0, whose chat_templates/ has models' own templates byte for
byte; LLAMA_CPP is llama_chat_format.py of llama-cpp-python's sources, which quotes those of other
models with their repositories. SmolLM2's and Zephyr's are written below, as public repositories
quote them. Needs transformers and jinja2, which are not requirements of the project (the file here
was written with 5.23.0 and 3.1.6).
"""

import gzip
import json
import random
import re
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

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


def conversation(rng: random.Random, has_system: bool, thinks: bool) -> list[dict[str, str]]:
    """Random messages that end with an answer."""

    def text() -> str:
        return "".join(rng.choices(PARTS, k=rng.randint(1, 5))) + "."

    messages = [{"role": "system", "content": text()}] * (has_system and rng.random() < 0.5)
    for _ in range(rng.randint(1, 3)):
        thought = rng.choice(THOUGHTS) if thinks and rng.random() < 0.5 else ""
        messages.append({"role": "user", "content": text()})
        messages.append({"role": "assistant", "content": thought + text()})
    return messages


def main() -> None:
    trl, quotes = Path(sys.argv[1]), Path(sys.argv[2]).read_text()
    templates = {"smollm2": SMOLLM2, "zephyr": ZEPHYR}
    for name, file in FILES.items():
        templates[name] = (trl / "trl" / "chat_templates" / f"{file}.jinja").read_text()
    for name, constant in QUOTED.items():
        quoted = re.search(rf"^{constant} = (\".*\")$", quotes, re.MULTILINE)[1]
        templates[name] = json.loads(quoted)
    rng, found = random.Random(0), {}
    for name, template in templates.items():
        rows = []
        for _ in range(50):
            messages = conversation(rng, name not in ("gemma", "mistral"), name == "qwen3")
            record = {"messages": messages}
            for key, given in (("text", messages), ("prompt", messages[:-1])):
                tokens = {"bos_token": FIRST.get(name, ""), "eos_token": "{eos}"}
                (record[key],), _ = render_jinja_template(
                    [given], chat_template=template, add_generation_prompt=key == "prompt", **tokens
                )
            rows.append(record)
        found[name] = {"template": template, "conversations": rows}
    content = json.dumps(found, ensure_ascii=False).encode()
    path = Path(__file__).parent / "fixtures" / "templates.json.gz"
    path.write_bytes(gzip.compress(content, mtime=0))


if __name__ == "__main__":
    main()
