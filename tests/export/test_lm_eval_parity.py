"""Our adapter gives what lm-eval's own Hugging Face backend gives on the exported model."""

import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from marin_dagster.evaluation.language_model import JaxLanguageModel
from marin_dagster.training.sampling import generate
from tests.unit.data.corpus import text
from tests.unit.evaluation.models import SMALL


def requests(kind: str, rows: list[tuple]) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=row, idx=i)  # pyright: ignore
        for i, row in enumerate(rows)
    ]


@pytest.fixture(scope="module")
def backends(exported):
    reference = HFLM(
        pretrained=exported.folder,
        device="cpu",
        dtype="float32",
        batch_size=8,
        add_bos_token=True,
        max_length=SMALL.seq_len,
    )
    ours = JaxLanguageModel(
        exported.model, exported.tokenizer, seq_len=SMALL.seq_len, batch_tokens=1024
    )
    return reference, ours


def pairs(count: int) -> list[tuple[str, str]]:
    """Cuts of texts anywhere: at spaces, inside words, at the start, beyond the window."""
    rng = np.random.default_rng(0)
    found: list[tuple[str, str]] = [("", "the red box"), ("the robot ", "found"), ("x " * 99, "y")]
    for number in rng.permutation(1000)[:count].tolist():  # the reference confuses equal texts
        whole = text(number)[:150]
        cut = int(rng.integers(1, len(whole) - 1))
        found.append((whole[:cut], whole[cut : cut + int(rng.integers(1, 40))]))
    return found


def test_loglikelihoods_and_greedy_flags_are_equal(backends):
    reference, ours = backends
    rows = [
        pair
        for pair in pairs(220)
        if pair[0] == "" or super(JaxLanguageModel, ours)._encode_pair(*pair)[1]
    ]  # the reference cannot score a continuation that its split leaves empty
    assert len(rows) >= 180
    expected = reference.loglikelihood(requests("loglikelihood", rows), disable_tqdm=True)
    found = ours.loglikelihood(requests("loglikelihood", rows), disable_tqdm=True)
    for row, (value, greedy), (other, other_greedy) in zip(rows, expected, found, strict=True):
        assert other == pytest.approx(value, abs=1e-3), row
        assert other_greedy == greedy, row


def test_greedy_generations_are_equal(backends, exported):
    reference, _ = backends
    prompts = [exported.tokenizer.encode_prompt(text(i)[:30]) for i in range(8)]
    found = generate(exported.model, prompts, 12, [2])
    for prompt, ids in zip(prompts, found, strict=True):
        whole = reference.model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=2
        )
        assert whole[0, len(prompt) :].tolist() == ids
