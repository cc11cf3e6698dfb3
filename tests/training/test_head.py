"""`python -m covey_training head`: the head's arithmetic, its files, and that it learns."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from covey import prompts
from covey.contracts.errors import SettingError, UnsupportedModel
from covey.contracts.profile import load
from covey.models import heads
from covey.models.lanes import chain
from covey.models.native.head import HeadModel
from covey.models.native.weights import floats
from covey_training import chains, distil, head, head_model, states
from covey_training.__main__ import parse
from covey_training.chains import Sample
from covey_training.optimiser import Budget
from tests.models.tiny_heads import Formula
from tests.models.tiny_models import build

LAYER = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
ATTENTION = [f"self_attn.{name}_proj" for name in "qkvo"]
MLP = [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
TENSORS = {
    f"{name}.weight" for name in ("fc", "norm", "lm_head", *(f"midlayer.{part}" for part in (*LAYER, *ATTENTION, *MLP)))
}


@pytest.fixture(scope="module")
def target(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("head") / "target"
    build(folder, "qwen3", torch.bfloat16, vocab_size=384, num_hidden_layers=8, eos_token_id=[1])
    shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture
def model(target: Path) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).requires_grad_(False)


@pytest.fixture
def windows() -> torch.Tensor:
    return torch.randint(2, 300, (16, 24), generator=torch.Generator().manual_seed(1))


def shaken(model: LlamaForCausalLM, kept: torch.Tensor | None = None) -> head_model.Head:
    """A head all of whose weights matter."""
    torch.manual_seed(2)
    made = head_model.begin(model, kept)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


@torch.no_grad()
def test_every_step_is_what_drafting_token_by_token_computes(
    model: LlamaForCausalLM, target: Path, windows: torch.Tensor, tmp_path: Path
) -> None:
    made, tokens = shaken(model), windows[:1, :10]
    head_model.save(made, tmp_path)
    made.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)  # as it is stored, in bfloat16
    formula, text = Formula(tmp_path, target), tokens[0].tolist()
    taps, embeddings, expected = made.read(model, tokens)
    assert torch.equal(embeddings, model.get_input_embeddings().weight[tokens[:, 1:]])
    assert torch.allclose(expected, model(input_ids=tokens).logits[:, 1:])
    drafted = list(made.unroll(taps, embeddings, 4))
    assert [step.shape[1] for step in drafted] == [9, 8, 7, 6]
    for begun in range(9):
        states = formula.states(text)[: begun + 1]
        for step in range(min(4, 9 - begun)):
            logits, outputs = formula.step(states, text[: begun + step + 2])
            assert torch.allclose(drafted[step][0, begun], logits[-1], atol=2e-5), (begun, step)
            states = torch.cat([states, outputs[-1:]])


def test_taps_are_three_layers_where_there_are_so_many() -> None:
    assert [head_model.tapped_layers(n) for n in (16, 32, 7)] == [[2, 8, 13], [2, 16, 29], [2, 3, 4]]
    for layers in range(4, 40):
        early, middle, late = head_model.tapped_layers(layers)
        assert 0 < early < middle < late < layers
    assert head_model.tapped_layers(2) == [1, 1, 1]
    with pytest.raises(UnsupportedModel, match="a target of 1 layer is not supported"):
        head_model.tapped_layers(1)


def test_the_folder_is_an_eagle_3_checkpoint(model: LlamaForCausalLM, tmp_path: Path) -> None:
    made = shaken(model)
    head_model.save(made, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert set(tensors) == TENSORS
    for name, value in made.named_parameters():
        assert torch.equal(tensors[name], value.to(torch.bfloat16))
    config = json.loads((tmp_path / "config.json").read_text())
    theirs = model.config
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["model_type"], config["hidden_act"], config["tie_word_embeddings"]) == ("llama", "silu", False)
    assert config["num_hidden_layers"] == 1
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                "rms_norm_eps", "vocab_size", "max_position_embeddings"):  # fmt: skip
        assert config[key] == getattr(theirs, key), key
    assert config["draft_vocab_size"] == theirs.vocab_size
    assert config["rope_parameters"] == theirs.rope_parameters
    assert (config["rope_theta"], config["rope_scaling"]) == (theirs.rope_parameters["rope_theta"], None)
    assert config["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}


def test_a_head_in_bytes_is_read_row_by_row_and_widened_for_other_systems(
    model: LlamaForCausalLM, target: Path, tmp_path: Path
) -> None:
    made = shaken(model, torch.arange(5, 300, 3))
    plain, small, wide = (tmp_path / name for name in ("plain", "small", "wide"))
    for folder, in_bytes in ((plain, False), (small, True)):
        folder.mkdir()
        head_model.save(made, folder, in_bytes=in_bytes)
    head_model.widen(small, wide)
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (plain, small, wide)]
    assert sizes[1] < 0.6 * sizes[0]
    assert sizes[2] == sizes[0]
    tensors, of = load_file(small / "model.safetensors"), heads.read(small, target).of
    for name, value in load_file(wide / "model.safetensors").items():
        exact = load_file(plain / "model.safetensors")[name]
        if value.ndim < 2:
            assert torch.equal(value, exact)
            continue
        read = torch.from_numpy(floats(of.weights[name.replace("midlayer.", "model.layers.0.")]))
        assert torch.equal(read, tensors[name] * tensors[f"{name}_scale"])
        assert torch.equal(value, read.bfloat16())
        assert (read - exact).abs().max() <= exact.abs().max() / 127
    head_model.round_to_bytes(made)
    head_model.save(made, wide, in_bytes=True)
    assert torch.equal(load_file(wide / "model.safetensors")["lm_head.weight"], tensors["lm_head.weight"])
    with pytest.raises(SettingError, match="has no matrix in bytes"):
        head_model.widen(plain, wide)
    tensors["lm_head.weight_scale"][3] = 3e38
    save_file(tensors, small / "model.safetensors")
    with pytest.raises(SettingError, match=r"lm_head.weight_scale has a number beyond"):
        floats(heads.read(small, target).of.weights["lm_head.weight"])
    tensors["lm_head.weight_scale"] = tensors["lm_head.weight_scale"].flatten()
    save_file(tensors, small / "model.safetensors")
    with pytest.raises(SettingError, match=r"lm_head.weight is I8 .* is due"):
        heads.read(small, target)


@torch.no_grad()
def test_taps_are_learnt_at_size_1_and_a_folder_s_weights_take_them_as_they_are(
    model: LlamaForCausalLM, windows: torch.Tensor, tmp_path: Path
) -> None:
    made = shaken(model)
    taps, embeddings, _ = made.read(model, windows)
    made.scale_to(taps)
    sized = taps.unflatten(-1, (3, -1)) * made.scale
    assert sized.square().mean((0, 1, 3)).tolist() == pytest.approx([1.0] * 3, rel=1e-4)
    head_model.save(made, tmp_path)
    plain = head_model.begin(model, None)
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    of_it, of_folder = (next(each.unroll(taps, embeddings, 1)) for each in (made, plain))
    assert torch.nn.functional.cosine_similarity(of_it, of_folder, dim=-1).min() > 0.999
    assert plain.scale.flatten().tolist() == [1.0] * 3


def test_a_draft_vocabulary_is_the_most_frequent_tokens(model: LlamaForCausalLM, tmp_path: Path) -> None:
    size = model.config.vocab_size
    tokens = torch.tensor([7, 7, 7, 300, 300, 5, 5, 5, 5, 9])
    kept = head.most_frequent(tokens, size, 3)
    assert kept is not None
    assert kept.tolist() == [5, 7, 300]
    assert head.most_frequent(tokens, size, None) is head.most_frequent(tokens, size, size) is None
    with pytest.raises(SettingError, match=f"--draft-vocab: got 0, allowed: 1 to {size}"):
        head.most_frequent(tokens, size, 0)
    made = shaken(model, kept)
    head_model.save(made, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert set(tensors) == TENSORS | {"d2t", "t2d"}
    assert tensors["d2t"].dtype == torch.int64
    assert (torch.arange(3) + tensors["d2t"]).tolist() == [5, 7, 300]
    assert tensors["t2d"].dtype == torch.bool
    assert tensors["t2d"].nonzero().flatten().tolist() == [5, 7, 300]
    assert tensors["lm_head.weight"].shape == (3, model.config.hidden_size)
    wide = made.widen(torch.tensor([[0.0, 1.0, 2.0]])).softmax(-1)
    assert wide.shape == (1, size)
    assert wide[0, [5, 7, 300]].tolist() == pytest.approx([0.0900, 0.2447, 0.6652], abs=1e-4)
    assert float(wide.sum()) == pytest.approx(1.0)


def test_chains_begin_at_every_sampled_token_with_enough_after_it(model: LlamaForCausalLM) -> None:
    """The chain from position p begins with the state before the last token: at index p - 2."""
    made = shaken(model)
    samples = [Sample([3, 4, 5], [6, 7, 8, 9, 10, 11]), Sample([9] * 11, [8, 7, 6, 5, 4])]
    found = chains.of_head(model, made, samples)
    rates = []
    for one, starts in zip(samples, ((3, 4), (11,))):
        tokens = torch.tensor([[*one.prompt, *one.continuation]])
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            taps, embeddings, expected = made.read(model, tokens)
            drafted = list(made.unroll(taps, embeddings, 5))
        for start in starts:
            chain = [
                torch.minimum(
                    expected[0, start - 2 + step].float().softmax(-1), logits[0, start - 2].float().softmax(-1)
                )
                for step, logits in enumerate(drafted)
            ]
            rates.append([float(both.sum()) for both in chain])
    assert found.acceptance == pytest.approx(torch.tensor(rates).mean(0).tolist(), abs=5e-3)
    assert found.accepted_length == pytest.approx(float(torch.tensor(rates).cumprod(1).sum(1).mean()), abs=2e-2)
    others = chains.of_others(model, {}, samples, [[True] * 6, [True, False, True, True, True]])
    assert others["n-gram"].accepted_length == pytest.approx((5 + 5 + 1) / 3)


@torch.no_grad()
def test_a_head_begins_as_the_target_s_last_layer(model: LlamaForCausalLM, windows: torch.Tensor) -> None:
    """Where it gives nothing to the embedding, what it reads of the latest tap is what that layer puts out."""
    made = head_model.begin(model, None)
    taps, embeddings, _ = made.read(model, windows)
    made.scale_to(taps)
    width = model.config.hidden_size
    made.fc.weight[:, :-width] = 0
    made.fc.weight[:, -width:] = torch.eye(width) / made.scale[-1]
    for projection in (made.midlayer.self_attn.q_proj, made.midlayer.self_attn.k_proj, made.midlayer.self_attn.v_proj):
        projection.weight[:, :width] = 0
    last, state = model.model.layers[-1], taps[..., -width:]
    norm = last.self_attn.q_norm, last.self_attn.k_norm  # a head has none: they are taken away
    last.self_attn.q_norm = last.self_attn.k_norm = torch.nn.Identity()
    positions = torch.arange(state.shape[1])[None]
    mask = torch.full((state.shape[1],) * 2, -torch.inf).triu(1)[None, None]
    expected = last(state, attention_mask=mask, position_embeddings=model.model.rotary_emb(state, positions))
    last.self_attn.q_norm, last.self_attn.k_norm = norm
    logits = next(made.unroll(taps, embeddings, 1))
    assert torch.allclose(logits, model.lm_head(model.model.norm(expected)), atol=1e-4)


@pytest.mark.parametrize("memory", [1 << 30, 0])
def test_states_are_what_the_head_reads_whether_kept_or_not(
    model: LlamaForCausalLM, windows: torch.Tensor, memory: int
) -> None:
    made = shaken(model, torch.arange(5, 300, 3))
    known = states.States(made, model, windows, memory)
    for chosen in ([3, 9, 3], [0, 15, 9]):
        taps, embeddings, expected = made.read(model, windows[chosen])
        found = known.of(torch.tensor(chosen))
        assert torch.allclose(found[0], taps, rtol=2**-7, atol=1e-6)
        assert torch.equal(found[1], embeddings)
        assert torch.allclose(found[2].float(), expected[..., made.kept], rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("progress", "steps"), [(0.0, 1), (0.6, 2), (0.75, 4), (0.99, 4)])
def test_drafts_of_lessons_are_short_at_first(
    model: LlamaForCausalLM, windows: torch.Tensor, progress: float, steps: int
) -> None:
    made = shaken(model, None)
    loss, _ = head.lessons(made, model, windows, argparse.Namespace(start=None, seed=0, rows=len(windows)))(0, progress)
    taps, embeddings, expected = made.read(model, windows)
    weight = distil.DistilSettings().weight_at(progress)
    parts = [
        float(distil.distance(logits.detach(), expected[:, step:], weight)[0])
        for step, logits in enumerate(made.unroll(taps, embeddings, steps))
    ]
    assert float(loss.detach()) == pytest.approx(np.average(parts, weights=[0.8**n for n in range(steps)]), rel=0.01)


def learnt(model: LlamaForCausalLM, windows: torch.Tensor, path: Path, *stops: int) -> torch.Tensor:
    """Train a head for 12 steps, leaving and resuming at `stops`."""
    for stop in (*stops, 12):
        torch.manual_seed(0)
        made = head_model.begin(model, None)
        loss = head.lessons(made, model, windows, argparse.Namespace(start=None, seed=0, rows=4))
        distil.fit(
            made, loss, Budget(steps=12), path, device=torch.device("cpu"),
            stop=lambda step, at=stop: step >= at,
        )  # fmt: skip
    return torch.cat([parameter.detach().flatten() for parameter in made.parameters()])


def test_a_resumed_head_has_the_weights_of_an_uninterrupted_one(
    model: LlamaForCausalLM, windows: torch.Tensor, tmp_path: Path
) -> None:
    whole = learnt(model, windows, tmp_path / "whole.pt")
    assert torch.equal(whole, learnt(model, windows, tmp_path / "resumed.pt", 4, 9))


def trained(target: Path, out: Path, *more: str) -> chains.Report:
    words = ["head", "--target", str(target), "--out", str(out), "--device", "cpu", "--samples", "60", "--tokens", "24"]
    folder, report = head.make(parse([*words, *more]))
    assert folder == out
    return report


@pytest.mark.slow
def test_training_brings_what_the_target_accepts(target: Path, tmp_path: Path) -> None:
    """The same command with more steps goes on, with the same samples; a profile serves what came of it."""
    out = tmp_path / "head"
    first = trained(target, out, "--steps", "1")
    before = load_file(out / "model.safetensors")
    report = trained(target, out, "--steps", "40")
    assert set(report) == set(prompts.DOMAINS)
    for domain, row in report.items():
        assert set(row) == {"draft_head", "n-gram"}
        one = row["draft_head"]
        assert one.accepted_length > first[domain]["draft_head"].accepted_length
        assert one.accepted_length > row["n-gram"].accepted_length
    after = load_file(out / "model.safetensors")
    assert not any(torch.equal(after[name], before[name]) for name in TENSORS)
    profile = load(str(out / "profile.toml"))
    assert profile.target.folder == str(target)
    assert profile.target.head == "draft_head"
    assert profile.drafter.folder_of("draft_head") == str(out)
    assert profile.speculation.drafters == ("draft_head", "draft_ngram", "draft_suffix")
    for other in (("--draft-vocab", "100"), ("--window", "128")):
        with pytest.raises(SettingError, match="another target, other settings or another version"):
            trained(target, out, "--steps", "40", *other)
    trained(target, tmp_path / "small", "--steps", "2", "--draft-vocab", "100")
    assert load_file(tmp_path / "small" / "model.safetensors")["lm_head.weight"].shape[0] == 100


def test_what_is_trained_is_what_a_server_computes(target: Path, model: LlamaForCausalLM, tmp_path: Path) -> None:
    learner = head_model.begin(model, None)
    head_model.save(learner, tmp_path)
    learner.load_state_dict({name: each.to(torch.bfloat16).float() for name, each in learner.state_dict().items()})
    tokens = torch.randint(2, 300, (1, 24), generator=torch.Generator().manual_seed(3))
    taps, embeddings, _ = learner.read(model, tokens)
    with torch.inference_mode():
        (expected,) = (each[0].numpy() for each in learner.unroll(taps, embeddings, 1))
    loaded, states = heads.read(tmp_path, target), taps[0].numpy() @ heads.taps_of(tmp_path, target).fc.T
    served = HeadModel(loaded, dtype="float32", blocks=4, threads=1, max_pass_tokens=64, most_blocks=0)
    work = chain(tokens[0, 1:].numpy().astype("int32"), 32)
    assert abs(served.forward(replace(work, states=states)) - expected).max() < 1e-3


@torch.no_grad()
@pytest.mark.parametrize("in_bytes", [False, True])
@pytest.mark.parametrize("draft_vocab", [None, 100])
def test_a_head_that_is_trained_further_begins_with_what_it_computed(
    target: Path, model: LlamaForCausalLM, tmp_path: Path, in_bytes: bool, draft_vocab: int | None
) -> None:
    tokens = torch.randint(2, 300, (2, 24), generator=torch.Generator().manual_seed(3))
    before = head_model.begin(model, head.most_frequent(tokens.flatten(), 384, draft_vocab))
    taps, embeddings, _ = before.read(model, tokens)
    before.scale_to(taps)
    if in_bytes:
        head_model.round_to_bytes(before)
    head_model.save(before, tmp_path, in_bytes=in_bytes)
    after = head_model.continued(model, tmp_path, target)
    after.scale_to(taps, learnt=True)
    assert after.scale.flatten().tolist() == pytest.approx(before.scale.flatten().tolist())
    for own, expected in zip(after.unroll(taps, embeddings, 3), before.unroll(taps, embeddings, 3)):
        near = torch.nn.functional.cosine_similarity(own, expected, dim=-1).min()
        assert near > (0.99999 if in_bytes else 0.999), "stored in bfloat16 otherwise"
    assert (after.kept is None) == (draft_vocab is None)
    assert after.kept is None or after.kept.equal(before.kept)


@pytest.mark.slow
def test_training_further_improves_a_head(target: Path, tmp_path: Path) -> None:
    first = trained(target, tmp_path / "first", "--steps", "4", "--draft-vocab", "200")
    further = trained(target, tmp_path / "further", "--steps", "16", "--start", str(tmp_path / "first"))
    for domain, row in further.items():
        assert row["draft_head"].accepted_length > first[domain]["draft_head"].accepted_length
    small, same = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "further"))
    assert same["d2t"].equal(small["d2t"])
    with pytest.raises(SettingError, match="keeps its own"):
        trained(target, tmp_path / "other", "--steps", "1", "--start", str(tmp_path / "first"), "--draft-vocab", "50")


def test_a_head_with_norms_of_its_own_is_not_trained_further(
    target: Path, model: LlamaForCausalLM, tmp_path: Path
) -> None:
    head_model.save(head_model.begin(model, None), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"norm_before_residual": True}))
    with pytest.raises(UnsupportedModel, match="cannot be trained further"):
        head_model.continued(model, tmp_path, target)


def test_targets_of_other_families_are_refused_by_name(tmp_path: Path) -> None:
    folder = build(tmp_path, "gpt_neox")
    model = AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(
        UnsupportedModel, match="a head for model type 'gpt_neox' is not supported: it has no embed_tokens"
    ):
        head_model.check(folder, model)
