import dataclasses
import os

import numpy as np
import pytest

from marin_dagster.data.tokenize import TokenizeConversations
from marin_dagster.posttraining.sft import SupervisedFineTune
from marin_dagster.recipe import StageError
from marin_dagster.training.model_files import load_model
from marin_dagster.training.optimizer import AdamW
from marin_dagster.training.schedule import Linear
from tests.fake_context import build
from tests.unit.data.corpus import CHATS, TOKENIZER
from tests.unit.data.toy_documents import in_this_process
from tests.unit.training.test_pretrain import PRETRAIN, QUIET, TRAIN, build_pretrained

SEQ_LEN = PRETRAIN.model.seq_len
CHAT_TOKENS = TokenizeConversations(
    name="chats", version="dev", conversations=CHATS, tokenizer=TOKENIZER, seq_len=SEQ_LEN
)
SFT = SupervisedFineTune(
    name="tiny",
    version="dev",
    checkpoint=PRETRAIN,
    tokenizer=TOKENIZER,
    conversations=CHAT_TOKENS,
    optimizer=AdamW(learning_rate=1e-2, schedule=Linear(warmup_steps=2)),
    num_steps=8,
    batch_size=2,
    seed=0,
    sample_questions=("Where is the robot?",),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("sft")
    build_pretrained(root)
    with in_this_process():
        build(CHAT_TOKENS, root)
    return root, build(SFT, root, **QUIET)


def test_fine_tuning_lowers_the_loss_on_what_the_assistant_writes(built):
    numbers = built[1].numbers
    assert numbers["train_loss"] < numbers["first_train_loss"]
    assert 0 < numbers["supervised_share"] < 1
    assert load_model(os.path.join(built[0], "artifacts", SFT.address))[1] == PRETRAIN.model


def test_the_summary_shows_the_mask_and_says_whether_answers_end(built):
    note = built[1].notes["One conversation with its loss mask"]
    assert any(line.startswith("+ ") for line in note.splitlines())
    (answer,) = built[1].tables["Answers"]
    assert answer["question"] == "Where is the robot?"
    assert built[1].numbers["stopped_share"] == float(answer["stopped"])


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_mask_of_all_zeros_or_all_ones_is_refused(built, weight):
    path = os.path.join(built[0], "artifacts", CHAT_TOKENS.address, "weights.bin")
    kept = np.fromfile(path, "<f2")
    try:
        np.full_like(kept, weight).tofile(path)
        with pytest.raises(StageError, match=rf"supervised share .* is {weight:g}"):
            build(SFT, built[0], **QUIET)
    finally:
        kept.tofile(path)


def test_documents_without_loss_weights_are_refused(built):
    plain = dataclasses.replace(SFT, conversations=TRAIN)
    with pytest.raises(StageError, match="has no loss weights"):
        build(plain, built[0], **QUIET)
