"""The model as the harness asks it: nothing is cut, nothing is taken from logits that are not numbers."""

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from skipwise.errors import EvaluationError
from skipwise.evaluation.harness import HarnessModel
from tests.tiny import byte_tokenizer, llama

LENGTH = 32


def instance(kind: str, *arguments: object) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0, metadata=("own", 0, 1))


def asked_model(batch_size: str = "1", **changes: object) -> HarnessModel:
    tokenizer = byte_tokenizer()
    for name, token in changes.items():
        setattr(tokenizer, name, token)
    made = HarnessModel(llama(LENGTH), tokenizer, max_length=LENGTH, batch_size=batch_size, precision="float32")
    made.task = "own"
    return made


def requests(kind: str, tokens: int) -> list[Instance]:
    """One request that has the model read so many tokens, or reserve them."""
    if kind == "loglikelihood":
        return [instance(kind, "a" * (tokens - 3), "bcde")]
    if kind == "loglikelihood_rolling":
        return [instance(kind, "a" * tokens)]
    return [instance(kind, "a" * (tokens - 8), {"until": ["\n"], "max_gen_toks": 8, "do_sample": False})]


@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling", "generate_until"])
def test_what_fits_is_the_harnesss_own_and_what_does_not_is_refused(kind: str) -> None:
    theirs = HFLM(pretrained=llama(LENGTH), tokenizer=byte_tokenizer(), max_length=LENGTH, batch_size=1)
    fitting, long = requests(kind, LENGTH), requests(kind, LENGTH + 1)
    assert getattr(asked_model(), kind)(fitting) == getattr(theirs, kind)(fitting)
    assert getattr(theirs, kind)(long)  # cut, with an answer all the same
    with pytest.raises(EvaluationError, match="task own: a request of 33 tokens with its answer exceeds 32"):
        getattr(asked_model(), kind)([*fitting, *long])


def test_an_answer_longer_than_everything_is_refused() -> None:
    asked = instance("generate_until", "a", {"until": [], "max_gen_toks": LENGTH})
    with pytest.raises(EvaluationError, match="a request of 33 tokens"):
        asked_model().generate_until([asked])


def test_a_tokenizer_without_bos_and_eos_can_be_asked() -> None:
    bare = asked_model("2", bos_token=None, eos_token=None)
    assert bare.without_ends
    asked = [instance("loglikelihood", "", "bcde"), *requests("loglikelihood", 20)]
    assert len(bare.loglikelihood(asked)) == 2
    assert bare.loglikelihood_rolling(requests("loglikelihood_rolling", 20))[0] < 0
    texts = bare.generate_until([*requests("generate_until", 20), *requests("generate_until", 24)])
    assert all(len(text) > 1 for text in texts)  # no end was seen where there is none


def test_logits_that_are_not_numbers_are_refused() -> None:
    broken = asked_model()
    with torch.no_grad():
        broken.model.model.norm.weight.fill_(float("nan"))
    for kind in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
        with pytest.raises(EvaluationError, match="task own: logits are not finite"):
            getattr(broken, kind)(requests(kind, 20))


def test_log_probabilities_are_float32_in_any_precision() -> None:
    model, tokenizer = llama(LENGTH), byte_tokenizer()
    half = HarnessModel(model, tokenizer, max_length=LENGTH, batch_size="1", precision="bf16")
    ((value, _),) = half.loglikelihood(requests("loglikelihood", 20))
    assert value != torch.tensor(value).bfloat16().item()
    ((exact, _),) = asked_model().loglikelihood(requests("loglikelihood", 20))
    assert value == pytest.approx(exact, rel=0.05)
