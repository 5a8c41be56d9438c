"""Marks by which models set their thoughts apart from their answers."""

import re

# A beginning and an end of thoughts, as patterns, and the models that write them. Marks of words
# alone end a thought only where one has begun.
MARKS = (
    (r"<think>", r"</think>"),  # DeepSeek-R1, Qwen3, QwQ, GLM-4.5, MiniMax-M1, Hunyuan
    (r"<thinking>", r"</thinking>"),  # prompted models
    (r"<seed:think>", r"</seed:think>"),  # Seed-OSS
    (r"\[THINK\]", r"\[/THINK\]"),  # Magistral
    (r"<thought>", r"</thought>"),  # EXAONE Deep
    (r"<Thought>", r"</Thought>"),  # Marco-o1
    (r"<reasoning>", r"</reasoning>"),  # models trained by GRPO recipes
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),  # OpenThinker, Sky-T1
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Command A Reasoning
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),  # Apertus
    (r"◁think▷", r"◁/think▷"),  # Kimi
    (r"<\|channel>thought\b", r"<channel\|>"),  # Gemma 4
    (r"<\|channel\|>analysis<\|message\|>", r"<\|channel\|>final<\|message\|>"),  # gpt-oss
)
WORDS = (
    (r"analysis(?=[A-Z])", r"assistantfinal"),  # gpt-oss, its special tokens dropped
    (r"Here is my thought process:", r"Here is my response:"),  # Granite 3.2
    (r"Here are my reasoning steps:", r"\[BEGIN FINAL RESPONSE\]"),  # Apriel
)
_BEGINS, _ENDS = ("|".join(marks) for marks in zip(*MARKS, *WORDS, strict=True))
_THOUGHT = re.compile(rf"\s*+(?:{_BEGINS})")
_THOUGHT_AT_END = re.compile(rf"(?:{_BEGINS})\s*+$")
_END = re.compile("|".join(end for _, end in MARKS))
_END_BEGUN = re.compile(_ENDS)


def is_mark(text: str) -> bool:
    """Return whether a text is the mark of a beginning or an end, and nothing else."""
    return re.fullmatch(f"{_BEGINS}|{_ENDS}", text) is not None


def without_thinking(answer: str) -> str:
    """Return what follows the last end of a thought: templates may put its beginning in the prompt.

    An answer that begins to think and does not end says nothing.
    """
    has_begun = _THOUGHT.match(answer) is not None
    if ends := list((_END_BEGUN if has_begun else _END).finditer(answer)):
        return answer[ends[-1].end() :]
    return "" if has_begun else answer


def opens_thought(prompt: str) -> bool:
    """Return whether a prompt ends with the beginning of a thought, as some templates do."""
    return _THOUGHT_AT_END.search(prompt) is not None
