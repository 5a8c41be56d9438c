"""Train two LoRA adapters of SmolLM2, a style and a task: `python recipes/adapters.py --out DIR`.

Needs `pip install peft` and `sps models fetch smollm2`. DIR gets a folder of PEFT for each,
`style` and `task`, prompts that no training has read (`style.jsonl`, `task.jsonl`), and those of
the training (`*-train.jsonl`). The target itself answers the questions of the style, and a rule
rewrites its answers; the task (an order becomes JSON) is made from lists. It takes minutes on two
cores. What exists is not made again.
"""

import argparse
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import spsbench
from spsbench.extensions.training.batches import compute_dtype, products
from spsbench.settings.models import fetched_folder

TARGET = "smollm2"
HELD_OUT = 24  # prompts of each
LENGTH, BATCH = 112, 4  # tokens of an example, and examples of a step
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

QUESTIONS = (
    "Tell me about {}.",
    "Why do people like {}?",
    "How would you explain {} to a child?",
    "What should a beginner know about {}?",
)
TOPICS = (
    "bread lighthouses chess the-moon bicycles volcanoes tea maps bees bridges snow glass clocks "
    "whales gardens printing rivers salt trains owls mountains paper silk kites deserts music "
    "ships cheese forests castles rain horses"
)
WORDS: Mapping[str, str] = {  # the style: a sailor who never shouts
    "the": "th'",
    "and": "an'",
    "of": "o'",
    "you": "ye",
    "your": "yer",
    "my": "me",
    "is": "be",
    "are": "be",
    "people": "mateys",
    "can": "may",
    "for": "fer",
    "with": "wi'",
    "very": "mighty",
    "old": "barnacled",
    "important": "worth a chest o' gold",
}

NAMES = ("Ann", "Bo", "Carla", "Dev", "Elif", "Femi", "Grete", "Hugo", "Ines", "Jun")
ITEMS = ("apples", "lamps", "chairs", "pens", "boots", "cups", "kettles", "ropes", "coats", "drums")
COLOURS = ("red", "blue", "green", "black", "white", "yellow", "grey", "brown")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
ORDERS = (
    "{name} wants {count} {colour} {item} by {day}.",
    "Please send {count} {item} in {colour} to {name}, not later than {day}.",
    "An order of {name}: {colour} {item}, {count} of them, due {day}.",
    "By {day} we owe {name} {count} {item}; the colour is {colour}.",
)


def sailor(text: str) -> str:
    """Rewrite a text in the style: lower case, other words, sentences that end in `arr!`."""
    words = re.sub(r"[a-z']+", lambda word: WORDS.get(word[0], word[0]), text.lower())
    return re.sub(r"\.(?=\s|$)", ", arr!", words)


def style_pairs() -> Iterator[tuple[str, str]]:
    """Yield questions and answers in the style, those that are held out first."""
    questions = [q.format(t.replace("-", " ")) for q in QUESTIONS for t in TOPICS.split()]
    random.Random(0).shuffle(questions)
    pair = spsbench.load(target=TARGET, k=0, max_new_tokens=64, temperature=0.7, threads=2)
    for start in range(0, len(questions), 32):
        some = questions[start : start + 32]
        yield from zip(some, (sailor(t.text) for t in pair.generate(some, chat=True)), strict=True)


def task_pairs() -> Iterator[tuple[str, str]]:
    """Yield orders in words and the JSON objects that state them."""
    draw = random.Random(1)
    for _ in range(160):
        order = {
            "customer": draw.choice(NAMES),
            "item": draw.choice(ITEMS),
            "colour": draw.choice(COLOURS),
            "quantity": draw.randint(2, 99),
            "due": draw.choice(DAYS),
        }
        values = dict(zip(("name", "item", "colour", "count", "day"), order.values(), strict=True))
        yield draw.choice(ORDERS).format(**values), json.dumps(order, indent=1)


def train(pairs: Sequence[tuple[str, str]], folder: Path, steps: int) -> None:
    """Train a LoRA adapter on answers in the target's chat template; save it as PEFT does."""
    torch.manual_seed(0)
    base = fetched_folder(TARGET)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    how = LoraConfig(r=16, lora_alpha=32, target_modules=[*MODULES], task_type="CAUSAL_LM")
    model = get_peft_model(model, how)
    examples = []
    for question, answer in pairs:
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        prompt = tokenizer.encode(asked, add_special_tokens=False)
        reply = tokenizer.encode(answer + tokenizer.eos_token, add_special_tokens=False)
        examples.append(((prompt + reply)[:LENGTH], len(prompt)))
    optimiser = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=1e-3)
    draw = random.Random(2)
    for step in range(steps):
        batch = draw.sample(examples, BATCH)
        longest = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in batch])
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in batch])
        labels = torch.where(mask > 0, ids, -100)
        for row, (_, begin) in enumerate(batch):
            labels[row, :begin] = -100
        with products(model.device, compute_dtype(model.device)):
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if step % 10 == 0 or step == steps - 1:
            print(f"{folder.name}: step {step + 1}/{steps}, loss {loss.item():.3f}", flush=True)
    model.peft_config["default"].base_model_name_or_path = TARGET
    model.save_pretrained(folder)


def main() -> None:
    """Make the data and train both adapters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, make_pairs in (("task", task_pairs), ("style", style_pairs)):
        path = options.out / f"{name}-data.jsonl"
        if not path.exists():
            path.write_text("".join(f"{json.dumps(pair)}\n" for pair in make_pairs()))
        pairs = [(line[0], line[1]) for line in map(json.loads, path.read_text().splitlines())]
        for stem, part in ((name, pairs[:HELD_OUT]), (f"{name}-train", pairs[HELD_OUT:])):
            lines = (json.dumps({"prompt": question}) for question, _ in part)
            (options.out / f"{stem}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        if not (options.out / name).exists():
            train(pairs[HELD_OUT:], options.out / name, options.steps)


if __name__ == "__main__":
    main()
