"""In which engine and version an extended checkpoint is right, and what happens in the others: the tested table."""

from tests.engines.models import FAMILIES, INTERPOLATIONS

WRONG = "wrong"  # without a word; every such cell is written out below
BOUND = 2e-4  # of the largest difference of a log-probability to the newest transformers, in nats, at 2,000 tokens

_UNKNOWN = "does not recognize this architecture"
_TWO_FIELDS = "`rope_scaling` must be a dictionary with two fields, `type` and `factor`"
_NO_FACTORS = "llama.cpp has no factors by frequency"
_UNBOUND = "UnboundLocalError: cannot access local variable 'long_inv_freq'"
_FLOAT32_ANGLES = (
    4e-4  # llama.cpp goes from pair to pair by multiplying in float32; how far off depends on the processor
)
_HALF_PRECISION_GELU = 2e-3  # llama.cpp looks GELU up in a table of float16


def expected(reader: str, family: str, interpolation: str) -> float | str:
    """The bound of the largest difference, ``WRONG``, or what the refusal says."""
    if reader == "transformers 4.45":
        if family in ("qwen3", "gemma3", "olmo2"):
            return _UNKNOWN
        # YaRN: it takes max_position_embeddings for the original length; right from 4.51 on
        if interpolation in ("yarn", "yarn-fitted"):
            return WRONG
        if family == "mistral" and interpolation != "ntk":  # its class reads no rope_scaling; right from 4.48 on
            return WRONG
    if reader == "transformers 4.57" and family == "olmo2" and interpolation != "ntk":
        return _TWO_FIELDS
    if reader == "transformers 5, oldest" and family == "gemma3" and interpolation in ("yarn-revised", "power"):
        return _UNBOUND  # in its second pass beyond the window, up to 5.19; right in 5.23
    if reader == "llama.cpp":
        if interpolation in ("yarn-revised", "power", "yarn-fitted") and family not in ("llama", "mistral"):
            return _NO_FACTORS
        if family in ("gpt_neox", "phi", "gemma3"):
            return _HALF_PRECISION_GELU
        return _FLOAT32_ANGLES
    return BOUND


CELLS = [(family, interpolation) for family in FAMILIES for interpolation in INTERPOLATIONS]
# Every family with YaRN and with factors by frequency, Llama with all: a test of all would take four minutes more.
TESTED = [cell for cell in CELLS if cell[0] == "llama" or cell[1] in ("yarn", "power")]
