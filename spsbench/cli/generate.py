"""`sps generate`: a prompt in, its continuation out, with the origin of every piece."""

from spsbench.cli import options as o
from spsbench.cli.interrupt import at_once
from spsbench.cli.notes import note, say
from spsbench.cli.prompt import WAYS, read_prompt
from spsbench.cli.screen import Paint, Screen, paint
from spsbench.config import check, make_cell
from spsbench.errors import UsageError

THREADS_MAX = 1024
DEFAULT_K = 4


def generate(
    prompt: o.PromptText = None,
    target: o.Target = "nano",
    draft: o.Draft = None,
    revision: o.Revision = None,
    draft_revision: o.DraftRevision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    allow_pickle: o.AllowPickle = False,
    offline: o.Offline = False,
    k: o.K = None,
    drafter: o.DrafterName = None,
    verifier: o.VerifierName = None,
    schedule: o.ScheduleName = None,
    engine: o.EngineName = "fast",
    max_new_tokens: o.MaxNewTokens = 128,
    temperature: o.Temperature = 1.0,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    seed: o.Seed = 0,
    stop: o.Stop = None,
    ignore_eos: o.IgnoreEos = False,
    prompt_file: o.PromptFile = None,
    chat: o.Chat = False,
    system: o.System = None,
    truncate: o.Truncate = None,
    compare: o.Compare = False,
    stats: o.Stats = True,
    color: o.ColorMode = "auto",
    json: o.Json = False,
    debug: o.Debug = False,
    device: o.Device = "cpu",
    dtype: o.Dtype = "auto",
    attn_implementation: o.Attention = None,
    threads: o.Threads = None,
) -> None:
    """Continue PROMPT by speculative sampling, exactly as the target alone would.

    The text goes to stdout, all else to stderr.
    """
    if k is not None and schedule is not None:
        raise UsageError(f"--k {k} with --schedule {schedule}: expected one of the two")
    if k == 0 and compare:
        raise UsageError("--compare with --k 0: expected K of 1 or more. Both would be ArS")
    if system is not None and not chat:
        raise UsageError("--system without --chat: expected both or none")
    expected = f"1..{THREADS_MAX}"
    check(threads is None or 1 <= threads <= THREADS_MAX, "--threads", threads, expected)
    cell = make_cell(
        target=target,
        draft=draft,
        drafter=drafter,
        verifier=verifier,
        schedule=schedule,
        engine=engine,
        k=DEFAULT_K if k is None else k,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=stop or (),
        ignore_eos=ignore_eos,
        revision=revision,
        draft_revision=draft_revision,
        device=device,
        dtype=dtype,
        attention=attn_implementation,
        trust_remote_code=trust_remote_code,
    )
    text = read_prompt(prompt, prompt_file)
    if text is None and not chat:
        raise UsageError(f"no prompt: expected {WAYS}, or a conversation with --chat")
    if text is None and (compare or json):
        flag = "--compare" if compare else "--json"
        raise UsageError(f"{flag} in a conversation: expected a prompt. Give {WAYS}")

    with at_once():
        from spsbench.cli.machine import prepare

        prepare(cell, offline=offline, allow_pickle=allow_pickle)
        if drafter is None and cell.drafter.name == "ngram":
            note("drafting by prompt lookup (ngram); name a draft model with --draft")

        from spsbench.cli.session import Message, open_session

        session = open_session(cell, offline=offline, allow_pickle=allow_pickle, threads=threads)
    screen = Screen(Paint.NONE if json else paint(color))
    if not json and (legend := screen.legend()):
        say(legend)
    if text is None:
        from spsbench.cli.chat import converse

        converse(session, screen, system=system, truncate=truncate is not None, stats=stats)
        return
    if chat:
        start = [Message(role="system", content=system)] if system else []
        ids = session.conversation([*start, Message(role="user", content=text)])
    else:
        ids = session.continuation(text)
    ids = session.fitted(ids, truncate is not None)

    from spsbench.cli.once import once

    once(session, ids, screen, compared=compare, json=json, stats=stats)
