"""The paper's numbers (PoSE, Zhu et al., ICLR 2024), by table.

Perplexities are of LLaMA-7B (window 2,048) at 1, 2, 4, 8, 16 times that window, by text; infinite where the paper
has more than 1,000. Values that its figures show were read off by eye.
"""

GOVREPORT, PROOF_PILE = "GovReport", "Proof-pile"
PG19, BOOKS3 = "PG-19", "Books3"

Published = dict[str, dict[str, tuple[float, ...]]]  # text -> row -> values

_INF = float("inf")
_ORIGINAL = (_INF,) * 4


def _both(row: str, govreport: tuple[float, ...], proof_pile: tuple[float, ...]) -> Published:
    return {GOVREPORT: {row: govreport}, PROOF_PILE: {row: proof_pile}}


def _together(*parts: Published) -> Published:
    return {text: {row: v for part in parts for row, v in part.get(text, {}).items()} for text in parts[0]}


_UNTRAINED = _both("original", (4.74, *_ORIGINAL), (2.83, *_ORIGINAL))

# Tables 1 and 6.
LINEAR_16K = _together(
    _UNTRAINED,
    _both("untrained", (43.80, 43.35, 45.89, 54.33), (25.32, 24.20, 24.88, 29.59)),
    _both("full_length", (4.87, 4.70, 4.61, 4.59), (2.93, 2.71, 2.58, 2.53)),
    _both("randpos", (11.63, 11.17, 11.54, 15.16), (7.26, 6.83, 6.76, 7.73)),
    _both("pose", (4.84, 4.68, 4.60, 4.60), (2.95, 2.74, 2.61, 2.60)),
)
LINEAR_32K = _together(
    _UNTRAINED,
    _both("randpos", (93.43, 95.85, 91.79, 93.22, 97.57), (60.74, 63.54, 60.56, 63.15, 66.47)),
    _both("pose", (4.91, 4.76, 4.68, 4.64, 4.66), (3.01, 2.78, 2.66, 2.60, 2.59)),
)
NTK_16K = _together(
    _UNTRAINED,
    _both("untrained", (5.62, 5.61, 5.80, 550.0), (3.27, 3.15, 3.19, 517.0)),
    _both("full_length", (4.78, 4.63, 4.57, 7.24), (2.93, 2.71, 2.61, 5.66)),
    _both("pose", (4.79, 4.63, 4.57, 7.24), (2.92, 2.71, 2.60, 4.37)),
)
YARN_16K = _together(
    _UNTRAINED,
    _both("untrained", (5.57, 5.51, 5.57, 5.83), (3.17, 2.97, 2.87, 2.89)),
    _both("full_length", (4.78, 4.62, 4.54, 4.53), (2.90, 2.68, 2.56, 2.52)),
    _both("pose", (4.79, 4.63, 4.55, 4.55), (2.91, 2.69, 2.57, 2.53)),
)

# Tables 4 and 5, linear interpolation; what the latter calls one chunk is the original model.
CONTENT = _together(
    _both("v uniform", (4.84, 4.68, 4.60, 4.60), (2.95, 2.74, 2.61, 2.60)),
    _both("v = 0", (4.85, 4.72, 4.64, 4.68), (2.96, 2.75, 2.63, 2.61)),
    _both("v = u", (4.84, 4.68, 4.60, 4.60), (2.95, 2.73, 2.60, 2.56)),
)
CHUNKS: Published = {
    PROOF_PILE: {
        "original": (2.83, _INF, _INF, _INF),
        "N = 2": (2.95, 2.74, 2.61, 2.60),
        "N = 3": (2.93, 2.72, 2.60, 2.59),
        "N = L_c": (7.26, 6.83, 6.76, 7.73),
    }
}

# Table 2, at 16, 32, 48 and 64 times the window. The paper calls its YaRN rows YaRN; the authors' program has revised YaRN.
EXTREME_96K: Published = {
    PG19: {"linear": (10.18, 11.11, 13.57), "ntk": (7.98, 20.39, 38.73), "yarn": (8.31, 8.65, 9.36)},
    BOOKS3: {"linear": (9.98, 10.90, 13.42), "ntk": (8.29, 20.82, 40.39), "yarn": (8.90, 9.40, 10.38)},
}
EXTREME_128K: Published = {
    PG19: {
        "linear": (16.90, 22.47, 26.77, 31.18),
        "ntk": (8.04, 14.84, 29.48, 34.80),
        "yarn": (9.32, 10.36, 10.77, 11.33),
    },
    BOOKS3: {
        "linear": (26.20, 43.62, 57.08, 70.87),
        "ntk": (8.34, 16.04, 31.42, 37.00),
        "yarn": (10.56, 12.30, 13.07, 13.81),
    },
}
for _table in (*EXTREME_96K.values(), *EXTREME_128K.values()):
    _table["yarn-revised"] = _table["yarn"]

# Table 3: BoolQ, PIQA, WinoGrande, TruthfulQA, ARC-C, HellaSwag, in per cent.
BENCHMARKS = ("BoolQ", "PIQA", "WinoGrande", "TruthfulQA", "ARC-C", "HellaSwag")
ABILITY = {
    ("original", ""): (75.11, 78.67, 69.85, 34.08, 51.19, 77.75),
    ("full_length", "linear, 8x"): (70.95, 77.64, 69.06, 31.89, 48.55, 74.19),
    ("full_length", "ntk, 8x"): (75.80, 78.08, 68.98, 33.83, 48.81, 76.57),
    ("full_length", "yarn, 8x"): (73.88, 77.64, 68.15, 34.12, 50.60, 77.18),
    ("pose", "linear, 8x"): (74.50, 78.13, 68.59, 32.05, 48.29, 75.56),
    ("pose", "ntk, 8x"): (74.28, 78.24, 68.90, 33.89, 49.83, 76.82),
    ("pose", "yarn, 8x"): (74.28, 78.02, 69.06, 34.00, 49.23, 77.04),
    ("pose", "linear, 64x"): (67.71, 76.22, 67.56, 36.16, 39.93, 66.04),
    ("pose", "ntk, 64x"): (75.35, 78.18, 68.98, 32.71, 49.66, 76.19),
    ("pose", "yarn, 64x"): (73.61, 77.80, 70.01, 34.47, 48.46, 75.54),
}

# Figure 2b, 50 trials a length, at 1, 2, 4, 8, 12 and 16 times the window: read off by eye; None where it shows no bar.
Retrieved = dict[str, tuple[str | None, ...]]
PASSKEY_16K: Retrieved = {
    "original": ("100%", *("0%",) * 5),
    "untrained": (None, *("0%",) * 5),
    "full_length": (*("90-100%",) * 4, None, None),
    "randpos": (None, *("0%",) * 5),
    "pose": (*("90-100%",) * 4, "0%", "0%"),
}
PASSKEY_32K: Retrieved = {"original": ("100%", *("0%",) * 5), "pose": ("88-100%",) * 6}

# Figure 3: 8 x V100 32 GB, ZeRO-3, 1,000 steps of 16; by target over window, read off by eye.
EFFICIENCY_GB = {"full_length": (16.0, 22.0, 31.0), "pose": (14.5, 14.5, 14.5)}
EFFICIENCY_HOURS = {"full_length": (4.0, 7.0, 13.7), "pose": (3.5, 3.7, 3.8)}
STEPS = (10, 30, 100, 300, 1000)
BY_STEP = {"full_length": (5.51, 4.99, 4.89, 4.83, 4.82), "pose": (5.68, 5.07, 4.95, 4.91, 4.87)}

# Figure 4, GovReport's first 1k and first 16k tokens, 16k targets: (at 1k, at 16k), read off by eye.
FAMILIES = {
    "LLaMA": {"linear": (5.30, 4.82), "ntk": (5.21, 5.4), "yarn": (5.19, 4.76)},
    "LLaMA2": {"linear": (5.13, 4.59), "ntk": (float("nan"), 4.93), "yarn": (5.08, 4.60)},
    "GPT-J": {"linear": (9.12, 7.84), "ntk": (8.77, 8.32), "yarn": (8.82, 7.84)},
    "Baichuan2": {"linear": (7.07, 6.07), "ntk": (6.83, 6.01), "yarn": (6.87, 6.02)},
}
FACTORS = {"LLaMA": 8, "LLaMA2": 4, "GPT-J": 8, "Baichuan2": 4}

# Figure 5, 2k to 16k: the chance of a distance in one example at 2,048, in the middle and at 14,336 tokens.
COVERAGE = {
    "original": (0, 0, 0),
    "2 chunks": (0.143, 0.143, 0.143),
    "3 chunks": (0.27, 0.21, 0.34),
    "RandPos": (1, 1, 1),
}
