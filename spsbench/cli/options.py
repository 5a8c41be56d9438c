"""The options that commands share: name, meaning and group of each."""

from typing import Annotated, Any, Literal

import typer

from spsbench.cli.screen import Color


def option(group: str, *names: str, help: str, **more: Any) -> Any:
    """An option of one of the groups of `--help`."""
    return typer.Option(*names, help=help, rich_help_panel=group, **more)


MODELS, METHOD, SAMPLING, PROMPT, OUTPUT, MACHINE = (
    "Models",
    "Method",
    "Sampling",
    "Prompt",
    "Output",
    "Machine",
)

Target = Annotated[
    str, option(MODELS, "--target", help="Bundled name, folder or hub id of the target model.")
]
Draft = Annotated[
    str | None, option(MODELS, "--draft", help="The draft model; without one, see --drafter.")
]
Revision = Annotated[str | None, option(MODELS, "--revision", help="Hub revision of the target.")]
DraftRevision = Annotated[
    str | None, option(MODELS, "--draft-revision", help="Hub revision of the draft model.")
]
TrustRemoteCode = Annotated[
    bool,
    option(MODELS, "--trust-remote-code", help="Run the repository's code; needs --revision."),
]
AllowPickle = Annotated[
    bool, option(MODELS, "--allow-pickle", help="Load weights that are not safetensors.")
]
Offline = Annotated[bool, option(MODELS, "--offline", help="Never ask the hub.")]

K = Annotated[
    int | None,
    option(METHOD, "--k", "-k", help="Tokens drafted a round, 1..64; 0 is ArS.", show_default="4"),
]
DrafterName = Annotated[
    str | None,
    option(
        METHOD,
        "--drafter",
        help="NAME[:key=value,...]; see sps list.",
        show_default="model with a draft model, else ngram",
    ),
]
VerifierName = Annotated[
    str | None,
    option(
        METHOD,
        "--verifier",
        help="The acceptance rule.",
        show_default="sps for sampled chains, else match",
    ),
]
ScheduleName = Annotated[
    str | None,
    option(METHOD, "--schedule", help="Chooses K anew each round.", show_default="constant"),
]
EngineName = Annotated[str, option(METHOD, "--engine", help="How the models are run.")]

MaxNewTokens = Annotated[
    int, option(SAMPLING, "--max-new-tokens", "-n", help="Tokens to generate at most.")
]
Temperature = Annotated[float, option(SAMPLING, "--temperature", help="0 is greedy.")]
TopP = Annotated[float, option(SAMPLING, "--top-p", help="Nucleus sampling; 1 is off.")]
TopK = Annotated[int, option(SAMPLING, "--top-k", help="The likeliest tokens only; 0 is off.")]
Seed = Annotated[int, option(SAMPLING, "--seed", help="The same seed gives the same text.")]
Stop = Annotated[
    list[str] | None,
    option(SAMPLING, "--stop", help="End before this text; may be given more than once."),
]
IgnoreEos = Annotated[
    bool, option(SAMPLING, "--ignore-eos", help="Go on after an end-of-text token.")
]

PromptText = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="The text to continue; - reads stdin, as it is."),
]
PromptFile = Annotated[
    str | None, option(PROMPT, "--prompt-file", metavar="FILE", help="Read it from a file, as is.")
]
Chat = Annotated[
    bool,
    option(
        PROMPT,
        "--chat/--no-chat",
        help="Use the model's chat template; without a prompt, hold a conversation.",
    ),
]
System = Annotated[str | None, option(PROMPT, "--system", help="System message, with --chat.")]
Truncate = Annotated[
    Literal["left"] | None,
    option(PROMPT, "--truncate", help="Drop the oldest tokens of a prompt that is too long."),
]

Compare = Annotated[
    bool, option(OUTPUT, "--compare", help="Run ArS alongside: speed-up, identical text.")
]
Stats = Annotated[bool, option(OUTPUT, "--stats/--no-stats", help="Figures on stderr.")]
ColorMode = Annotated[Color, option(OUTPUT, "--color", help="Colour the text by origin.")]
Json = Annotated[bool, option(OUTPUT, "--json", help="One JSON object on stdout.")]
Debug = Annotated[bool, option(OUTPUT, "--debug", help="Show the traceback of an error.")]

Device = Annotated[str, option(MACHINE, "--device", help="cpu, cuda, cuda:1 ...")]
Dtype = Annotated[
    str, option(MACHINE, "--dtype", help="auto: float32 on a CPU, else the checkpoint's.")
]
Attention = Annotated[
    str | None,
    option(MACHINE, "--attn-implementation", help="As transformers names them.", metavar="NAME"),
]
Threads = Annotated[
    int | None, option(MACHINE, "--threads", help="CPU threads.", show_default="torch's choice")
]
