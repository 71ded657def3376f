"""Turns a checkpoint into a folder that Hugging Face's `transformers` loads."""

from dataclasses import dataclass
from typing import ClassVar

from marin_dagster.kinds import Checkpoint, HuggingFaceModel, Tokenizer
from marin_dagster.recipe import Context, Summary


@dataclass(frozen=True, kw_only=True)
class ExportHuggingFace(HuggingFaceModel):
    """Writes weights, configuration, tokenizer and chat template for `transformers`.

    A model of a `MoEConfig` is a `Dots1ForCausalLM`, one of a `DenseConfig` a `LlamaForCausalLM`.
    Where the extra `export` is installed, `transformers` loads the folder again and its logits are
    compared with ours; where it is not, the summary says so.
    """

    stage: ClassVar[str] = "exports"
    accelerated: ClassVar[bool] = True

    checkpoint: Checkpoint
    tokenizer: Tokenizer

    def build(self, ctx: Context) -> Summary:
        from marin_dagster.evaluation.export_build import build_export

        return build_export(self, ctx)
