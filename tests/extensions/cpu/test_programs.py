"""Passes as programs: the bits of the model's own code, and refused where unsure."""

import copy
import doctest
import gc
from weakref import ref

import pytest
import torch

from spsbench.engines.session.cache import PreallocatedLayer
from spsbench.engines.session.engine_config import get_prepared
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.kernels.steps import OF_TORCH, available
from spsbench.extensions.cpu.replay import program
from spsbench.extensions.cpu.replay.record import RecordingCache
from tests.extensions.cpu.programs import MODELS, ready
from tests.oracles.models import laws
from tests.variants import first

pytestmark = [pytest.mark.numeric, pytest.mark.skipif(not available(), reason="needs a C compiler")]
dtypes = pytest.mark.parametrize("dtype", KINDS, ids=str)

SIZES = [1, 5, 1, 5, 1, 5, 1, 5, 2, 2, 2, 2, 9, 9, 9, 1]


def grown(model, sizes=SIZES):
    """Logits of passes of those sizes, each after all before."""
    lm, seen = Fast().session(model), 4
    lm.append(torch.arange(seen), keep=0)
    found = []
    for size in sizes:
        new = (torch.arange(size) * 7 + seen) % 70
        found.append(lm.append(new, keep=size).logits)
        seen += size
    return found


def stock(model):
    """Have every pass run the model's own code."""
    get_prepared(model).replay.run = lambda request, end: request.of(model)
    return model


def plain(architecture, sizes=SIZES, **more):
    """The logits by the model's own code."""
    return grown(stock(ready(architecture, **more)[0]), sizes)


@dtypes
@pytest.mark.parametrize("architecture", first(3, MODELS))
def test_programs_are_what_the_model_computes(architecture, dtype):
    """Bit for bit, at every length, and it is programs that ran: all passes but the first ones."""
    model, tape = ready(architecture, dtype)
    found = grown(model)
    assert all(map(torch.equal, found, plain(architecture, dtype=dtype)))
    assert tape.refused is None
    assert tape.counts[1] >= len(SIZES) - 5  # one a size, and another as a window begins to hide


@dtypes
@pytest.mark.parametrize("sizes", [[1] * 8, [4, 1, 1, 1]], ids=["checked before", "checked there"])
def test_the_token_that_fills_a_window_is_computed_as_any_other(sizes, dtype):
    """Own code attends to nine keys of a window of nine by the kernel that the program calls."""
    model, tape = ready("mistral", dtype)
    assert all(map(torch.equal, grown(model, sizes), plain("mistral", sizes, dtype=dtype)))
    assert tape.refused is None


@pytest.mark.parametrize("weights", ["int8", "int4"])
@dtypes
def test_programs_over_codes(weights, dtype):
    from spsbench.engines.quantization.layers import quantise

    def spoil(model):
        quantise(model, weights)

    model, tape = ready("llama", dtype, spoil=spoil)
    found = grown(model)
    assert tape.counts[1] == len(SIZES) - 4
    assert all(map(torch.equal, found, plain("llama", dtype=dtype, spoil=spoil)))


@pytest.mark.parametrize("context", first(1, (100, 300)))
def test_learned_positions_end_with_the_context(context):
    """Room is doubled, but a model has a row for each position of its context, and no more."""
    model, tape = ready("gpt2", n_positions=context)
    sizes = [*[5] * ((context - 4) // 5), *[1] * ((context - 4) % 5)]
    found = grown(model, sizes)
    assert tape.refused is None
    assert all(map(torch.equal, found, plain("gpt2", sizes, n_positions=context)))


def test_weights_that_move_are_followed():
    """Their memory may be exchanged: what is freed must not be read."""
    model, _ = ready("llama")
    before = grown(model, [1, 1, 1, 1])
    for weight in model.parameters():
        weight.data = weight.data.clone()
    assert all(map(torch.equal, before, grown(model, [1, 1, 1, 1])))
    for weight in model.model.layers[1].parameters():
        weight.data = weight.data * 2
    assert not torch.equal(before[3], grown(model, [1, 1, 1, 1])[3])


def test_hidden_states_that_are_changed_in_place_are_seen():
    """The tensor is the one that was foreseen, what is in it is not."""

    def spoil(model):
        for layer in model.model.layers:
            layer.register_forward_hook(lambda module, given, made: made.mul_(0.5))

    model, tape = ready("llama", spoil=spoil)
    found = grown(model)
    assert tape.counts[1] == 0
    other, _ = ready("llama", spoil=spoil)
    assert all(map(torch.equal, found, grown(stock(other))))


def test_hidden_states_of_every_layer_come_as_before():
    model, _ = ready("llama")
    other = stock(ready("llama")[0])
    for _ in range(3):
        states = []
        for each in model, other:
            lm = Fast().session(each, layers=(1, 2))
            lm.append(torch.arange(4), keep=0)
            scores = [lm.append(torch.tensor([n]), keep=1) for n in range(5)]
            states.append([score.hidden for score in scores])
    assert str(states[0]) == str(states[1])


def at_the_end(change):
    """Have each network of a layer end in `change` of its result."""

    def spoil(model):
        for layer in model.model.layers:
            own = layer.mlp.forward
            layer.mlp.forward = lambda x, own=own: change(own(x))

    return spoil


NO_PROGRAMS = {
    "looks at a list": at_the_end(lambda x: (x.tolist(), x)[1]),
    "looks at a number": at_the_end(lambda x: (x.sum().item(), x)[1]),
    "looks at an array": at_the_end(lambda x: (x.numpy(), x)[1]),
    "looks at a truth": at_the_end(lambda x: (bool(x.sum() > 0), x)[1]),
    "an operation without a kernel": at_the_end(lambda x: x.cos()),
}


@pytest.mark.parametrize("name", NO_PROGRAMS)
def test_layers_that_are_no_program_run_their_own_code(name):
    model, tape = ready("llama", spoil=NO_PROGRAMS[name])
    found = grown(model, [1] * 5)
    assert tape.refused
    assert all(map(torch.equal, found, plain("llama", [1] * 5, spoil=NO_PROGRAMS[name])))


def halved(steps):
    return lambda *given: [one._replace(n=(*one.n[:2], one.n[2] // 2)) for one in steps(*given)]


WRONG = {"add": OF_TORCH["mul"], "embedding": halved(OF_TORCH["embedding"])}


@pytest.mark.parametrize("name", WRONG)
def test_a_program_that_is_wrong_is_never_used(name, monkeypatch):
    right = grown(ready("llama")[0])
    monkeypatch.setitem(OF_TORCH, name, WRONG[name])
    model, tape = ready("llama")
    assert all(map(torch.equal, right, grown(model)))
    assert "differs" in (tape.refused or "")


@pytest.mark.parametrize("part", ["shape", "size", "len"])
def test_what_depends_on_the_past_is_no_program(part, monkeypatch):
    update = RecordingCache.update

    def watched(cache, *given, **more):
        keys, values = update(cache, *given, **more)
        ways = {"shape": lambda: keys.shape, "size": keys.size, "len": lambda: len(keys[0, 0])}
        ways[part]()
        return keys, values

    monkeypatch.setattr(RecordingCache, "update", watched)
    model, tape = ready("llama")
    grown(model, [1, 1, 1])
    assert tape.refused
    assert gc.isenabled()


def test_a_hook_that_comes_later_is_heard():
    model, _ = ready("llama")
    grown(model)
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, given, made: made.mul_(0.5))
    found = grown(model, [1, 1, 5])
    assert all(map(torch.equal, found, grown(stock(model), [1, 1, 5])))


@pytest.mark.parametrize("change", ["empty", "strided", "expanded", "other dtype"])
def test_weights_of_another_form_are_not_read(change):
    """While a session goes on; the layers' own code says what is wrong."""
    model, _ = ready("llama")
    grown(model, [1, 1, 1, 1])
    lm = Fast().session(model)
    lm.append(torch.arange(4), keep=0)
    lm.append(torch.tensor([1]), keep=1)
    weight = model.model.layers[1].mlp.down_proj.weight
    weight.data = {
        "empty": torch.empty(0),
        "strided": torch.stack([weight.data] * 2, -1)[..., 0],
        "expanded": torch.ones(1).expand(weight.shape),
        "other dtype": weight.data.bfloat16(),
    }[change]
    with pytest.raises(RuntimeError):
        lm.append(torch.tensor([1]), keep=1)


def test_a_cache_whose_parts_have_different_room(monkeypatch):
    """Growing was interrupted: what has no room must not be written."""
    model, _ = ready("llama")
    grown(model)
    widen, asked = PreallocatedLayer.widen, []

    def once(layer, room):
        asked.append(room)
        if len(asked) == 2:
            raise MemoryError
        widen(layer, room)

    def run():
        lm = Fast().session(model)
        lm.append(torch.arange(250) % 70, keep=0)
        asked.clear()
        with monkeypatch.context() as short:
            short.setattr(PreallocatedLayer, "widen", once)
            with pytest.raises(MemoryError):
                lm.append(torch.arange(9), keep=9)
        return [lm.append(torch.tensor([n % 70]), keep=1).logits for n in range(40)]

    found = run()
    stock(model)
    assert all(map(torch.equal, found, run()))


def test_a_pass_within_another_runs_the_layers_own_code():
    """Of a thread, or of a hook: a model has one program at work."""
    model, tape = ready("llama")
    right = grown(model)
    inner = []

    def hook(module, given):
        if not inner:
            inner.append([])
            inner[0] += grown(model)

    handle = model.model.layers[1].register_forward_pre_hook(hook)
    outer = grown(model)
    handle.remove()
    assert all(map(torch.equal, right, outer))
    assert all(map(torch.equal, right, inner[0]))
    assert tape.refused is None


def test_a_model_that_is_no_longer_used_is_freed_with_its_programs():
    known = ref(model := ready("llama")[0])
    grown(model)
    del model
    gc.collect()
    assert known() is None


def test_a_copy_of_a_model_has_its_own_code_again():
    model, _ = ready("llama")
    copied = copy.deepcopy(model)
    layer = copied.model.layers[0]
    assert layer.forward.__self__ is layer
    torch.testing.assert_close(laws(copied, [1, 2, 3]), laws(model, [1, 2, 3]))


@pytest.mark.parametrize("by", ["number", "constant"])
def test_a_pass_that_depends_on_where_it_begins_is_no_program(by):
    """Checks at one place see nothing: what is written down there is compared with another."""

    def spoil(model):
        class Longer(type(model.model)):
            def forward(self, *given, past_key_values=None, **named):
                past = 0 if past_key_values is None else past_key_values.get_seq_length()
                factor = 1 + past * 1e-6
                out = super().forward(*given, past_key_values=past_key_values, **named)
                by_what = torch.tensor(factor) if by == "constant" else factor
                out.last_hidden_state = out.last_hidden_state * by_what
                return out

        model.model.__class__ = Longer

    model, tape = ready("llama", spoil=spoil)
    lm, own = Fast().session(model), Fast().session(stock(ready("llama", spoil=spoil)[0]))
    for each in lm, own:
        each.append(torch.arange(4), keep=0)
    for _ in range(5):
        lm.append(torch.tensor([7]), keep=1)
        lm.commit(4)
    for each in lm, own:
        each.append(torch.arange(9), keep=0)
    again = [each.append(torch.tensor([7]), keep=1).logits for each in (lm, own)]
    assert torch.equal(*again)
    assert tape.refused


def test_an_id_beyond_the_embeddings_is_refused():
    model, _ = ready("llama")
    grown(model)
    lm = Fast().session(model)
    lm.append(torch.arange(4), keep=0)
    before = lm.append(torch.tensor([1]), keep=1).logits
    lm.commit(4)
    for wrong in (-1, 96):
        with pytest.raises(IndexError):
            lm.append(torch.tensor([wrong]), keep=1)
    assert torch.equal(before, lm.append(torch.tensor([1]), keep=1).logits)


def test_the_example_of_an_affine_array_holds():
    assert doctest.testmod(program).attempted > 0 == doctest.testmod(program).failed
