"""Turns a model and its tokenizer into what lm-evaluation-harness calls a language model.

Every request begins with exactly one `<s>`, as every row that the model was trained on does. In
chat mode, control pieces travel through lm-eval's strings between NULs, which no text contains, and
become control ids here; the same pieces in a task's text stay text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from marin_dagster.data.tokenizer import TextTokenizer
from marin_dagster.evaluation.scoring import Request, Score, in_float32, score
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.posttraining.chat import CHAT_TEMPLATE, END, role_piece
from marin_dagster.training.sampling import generate

MAX_NEW_TOKENS = 256  # lm-eval's own default
TURN_TOKENS = 64  # tokens between two looks for a stop string
ROWS = 16  # rows of a batch that generates
_CONTROL = re.compile("\0(<[|][a-z]+[|]>)\0")


class JaxLanguageModel(TemplateLM):
    """Answers lm-eval's three kinds of request; `progress` hears (done, total) per batch."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TextTokenizer,
        *,
        seq_len: int,
        batch_tokens: int,
        chat: bool = False,
        seed: int = 0,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ):
        super().__init__()
        self._model = in_float32(model)
        self._text = tokenizer
        self._seq_len, self._batch_tokens = seq_len, batch_tokens
        self.chat, self._seed, self._progress = chat, seed, progress

    @property
    def eot_token_id(self) -> int:
        return self._text.eos_id

    @property
    def prefix_token_id(self) -> int:
        return self._text.bos_id

    @property
    def max_length(self) -> int:
        return self._seq_len

    @property
    def tokenizer_name(self) -> str:
        return self._text.digest

    def chat_template(self, chat_template: bool | str = False) -> str:
        return CHAT_TEMPLATE if chat_template else ""

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation with its control pieces between NULs, up to where the answer begins."""
        turns = [
            f"\0{role_piece(message['role'])}\0{message['content']}\0{END}\0"
            for message in chat_history
        ]
        text = "".join(turns)
        if add_generation_prompt:
            return text + f"\0{role_piece('assistant')}\0"
        return text.removesuffix(f"\0{END}\0")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        ids: list[int] = []
        parts = _CONTROL.split(string) if self.chat else [string]
        for place, part in enumerate(parts):
            ids += [self._text.token_id(part)] if place % 2 else self._text.encode(part)
        return ids if add_special_tokens is False else [self._text.bos_id, *ids]

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """lm-eval's split of the joint encoding; where that leaves nothing, of each by itself."""
        before, after = super()._encode_pair(context, continuation)
        if not after:
            return before, self.tok_encode(continuation, add_special_tokens=False)
        return before, after

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        for (context, continuation), before, after in requests:
            if not after:
                raise ValueError(
                    f"continuation {continuation!r} after {context[-40:]!r} adds no token; "
                    "a task may not score an empty continuation"
                )
            assert (before + after).count(self._text.bos_id) == 1, "one <s> opens a request"
        return list(self._score([Request(a + b, len(b)) for _, a, b in requests]))

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihood of whole texts, in disjoint windows of at most `seq_len` targets."""
        windows: list[Request] = []
        owners: list[int] = []
        for index, request in enumerate(requests):
            (text,) = request.args
            for pair in get_rolling_token_windows(
                self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._seq_len,
                context_len=1,
            ):
                before, after = make_disjoint_window(pair)
                windows.append(Request(before + after, len(after)))
                owners.append(index)
        totals = [0.0] * len(requests)
        for index, part in zip(owners, self._score(windows), strict=True):
            totals[index] += part.loglikelihood
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continues each context until one of its stop strings, an end id, or its token limit."""
        jobs = [_Job(index, *self._prepare(r)) for index, r in enumerate(requests)]
        jobs.sort(key=lambda job: (job.temperature, len(job.prompt)), reverse=True)
        for start in range(0, len(jobs), ROWS):
            self._finish(jobs[start : start + ROWS])
            self._progress(min(start + ROWS, len(jobs)), len(jobs))
        return [job.text for job in sorted(jobs, key=lambda job: job.index)]

    def _score(self, requests: list[Request]) -> list[Score]:
        return score(self._model, requests, self._seq_len, self._batch_tokens, self._progress)

    def _prepare(self, request: Instance) -> tuple[list[int], list[str], int, float]:
        arguments: Any = request.args
        context, options = arguments
        until = options.get("until") or []
        limit = int(options.get("max_gen_toks", MAX_NEW_TOKENS))
        limit = min(limit, self._seq_len - 1)
        sampled = options.get("do_sample", True)
        temperature = float(options.get("temperature", 0.0)) if sampled else 0.0
        prompt = self.tok_encode(context)[-(self._seq_len - limit) :]
        return prompt, [until] if isinstance(until, str) else list(until), limit, temperature

    def _finish(self, jobs: "list[_Job]") -> None:
        """Advances a batch in turns, so that stop strings end it soon after they appear."""
        stop_ids = [self._text.eos_id, *([self._text.token_id(END)] if self.chat else [])]
        turn = 0
        while waiting := [job for job in jobs if not job.done]:
            temperature = waiting[0].temperature
            waiting = [job for job in waiting if job.temperature == temperature]
            padded = waiting + [waiting[0]] * (ROWS - len(waiting))
            prompts = [job.prompt + job.ids for job in padded]
            seed = self._seed + turn
            new = generate(self._model, prompts, TURN_TOKENS, stop_ids, temperature, seed)
            for job, ids in zip(waiting, new, strict=False):
                job.take(ids, stop_ids, self._text)
            turn += 1


class _Job:
    """One request for text, while it is being answered."""

    def __init__(
        self, index: int, prompt: list[int], until: list[str], limit: int, temperature: float
    ):
        self.index, self.prompt, self.until = index, prompt, [text for text in until if text]
        self.limit, self.temperature = limit, temperature
        self.ids: list[int] = []
        self.text, self.done = "", limit < 1

    def take(self, ids: list[int], stop_ids: Sequence[int], tokenizer: TextTokenizer) -> None:
        self.ids = (self.ids + ids)[: self.limit]
        self.text = tokenizer.decode(self.ids)
        ends = [self.text.find(stop) for stop in self.until if stop in self.text]
        if ends:
            self.text = self.text[: min(ends)]
        self.done = bool(ends) or self.ids[-1] in stop_ids or len(self.ids) >= self.limit
