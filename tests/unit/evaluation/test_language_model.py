"""The adapter splits where lm-eval splits, opens with one `<s>`, and obeys stop strings."""

import math

import pytest
from lm_eval.api.instance import Instance

from marin_dagster.data.tokenizer import load_tokenizer
from marin_dagster.evaluation.language_model import JaxLanguageModel
from marin_dagster.evaluation.scoring import Request, score
from marin_dagster.posttraining.chat import render_prompt
from marin_dagster.training.model_files import load_model
from tests.fake_context import build
from tests.unit.data.corpus import TOKENIZER, build_tokenizer
from tests.unit.evaluation.models import MODEL, SMALL


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    root = build_tokenizer(tmp_path_factory.mktemp("adapter"))
    build(MODEL, root)
    tokenizer = load_tokenizer(str(root / "artifacts" / TOKENIZER.address))
    return load_model(str(root / "artifacts" / MODEL.address))[0], tokenizer


def adapter(parts, **changes) -> JaxLanguageModel:
    fields = {"seq_len": SMALL.seq_len, "batch_tokens": 256, **changes}
    return JaxLanguageModel(*parts, **fields)


def ask(kind: str, *rows: tuple) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=row, idx=i)  # pyright: ignore
        for i, row in enumerate(rows)
    ]


PAIRS = [
    ("the little robot", " found a red box"),
    ("the little robot ", "found a red box"),  # the space moves to the continuation
    ("", "found a red box"),
    ("the old tr", "ees"),  # merges over the boundary
    ("x " * 100, "box"),  # longer than the window
    ("a </s> b <|end|>", " <s>"),
]


def test_loglikelihoods_are_those_of_the_tokens_after_the_context(parts):
    model, tokenizer = parts
    found = adapter(parts).loglikelihood(ask("loglikelihood", *PAIRS))
    for (context, continuation), (value, _) in zip(PAIRS, found, strict=True):
        moved = context.rstrip()
        whole = tokenizer.encode_prompt(context + continuation)
        start = len(tokenizer.encode_prompt(moved))
        if len(whole) <= start:
            whole = [*tokenizer.encode_prompt(moved), *tokenizer.encode(continuation)]
        (expected,) = score(model, [Request(whole, len(whole) - start)], SMALL.seq_len, 64)
        assert value == pytest.approx(expected.loglikelihood, abs=1e-4), context


def test_probabilities_of_all_single_tokens_sum_to_one(parts):
    model, tokenizer = parts
    requests = [Request([1, 20, token], 1) for token in range(tokenizer.vocab_size)]
    values = score(model, requests, SMALL.seq_len, 1024)
    assert sum(math.exp(value.loglikelihood) for value in values) == pytest.approx(1, abs=1e-4)


def test_rolling_scores_every_token_once_after_one_bos(parts):
    model, tokenizer = parts
    text = "the robot opened the red box with care. " * 10
    (value,) = adapter(parts).loglikelihood_rolling(ask("loglikelihood_rolling", (text,)))
    ids = tokenizer.encode_prompt(text)
    assert len(ids) > SMALL.seq_len
    expected = 0.0
    for start in range(1, len(ids), SMALL.seq_len):
        end = min(start + SMALL.seq_len, len(ids))
        before = ids[max(0, end - 1 - SMALL.seq_len) : start]
        request = Request(before + ids[start:end], end - start)
        expected += score(model, [request], SMALL.seq_len, 64)[0].loglikelihood
    assert value == pytest.approx(expected, abs=1e-3)


def test_an_empty_continuation_is_refused(parts):
    with pytest.raises(ValueError, match="continuation '' after 'the box' adds no token"):
        adapter(parts).loglikelihood(ask("loglikelihood", ("the box", "")))


def test_generation_stops_at_its_stop_string_and_limit(parts):
    lm = adapter(parts)
    limit = {"max_gen_toks": 20, "do_sample": False}
    (free,) = lm.generate_until(ask("generate_until", ("the red", {**limit, "until": []})))
    assert len(free) > 3
    stop = free[2:4]
    (cut,) = lm.generate_until(ask("generate_until", ("the red", {**limit, "until": [stop]})))
    assert cut == free[: free.index(stop)]
    (none,) = lm.generate_until(ask("generate_until", ("the red", {**limit, "max_gen_toks": 1})))
    assert free.startswith(none.rstrip("\ufffd"))


def test_generations_keep_the_order_of_their_requests(parts):
    lm = adapter(parts)
    options = {"max_gen_toks": 6, "until": [], "do_sample": False}
    contexts = ["the", "the little robot found", "a red"] * 7
    together = lm.generate_until(ask("generate_until", *[(text, options) for text in contexts]))
    alone = [lm.generate_until(ask("generate_until", (t, options)))[0] for t in contexts[:3]]
    assert together == alone * 7


def test_chat_requests_are_the_ids_that_training_sees(parts):
    _, tokenizer = parts
    lm = adapter(parts, chat=True)
    messages = [{"role": "user", "content": "say </s> <|end|>"}]
    assert lm.tok_encode(lm.apply_chat_template(messages)) == render_prompt(messages, tokenizer)
    assert lm.tok_encode("<|end|>")[1:] == tokenizer.encode("<|end|>")
