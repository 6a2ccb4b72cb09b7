"""The models that are compared: labels in records, and names in tables."""

BASELINES = ("original", "pi-only")
ARM_NAMES = {
    "original": "original",
    "pi-only": "PI-only",
    "short": "short",
    "randpos": "RandPos",
    "cream": "CREAM",
    "pose": "PoSE",
    "full": "full-length",
    "skipwise-short": "Skipwise, short",
    "skipwise-randpos": "Skipwise, RandPos",
    "skipwise-cream": "Skipwise, CREAM",
    "skipwise-full": "Skipwise, full-length",
    "skipwise": "Skipwise",
}


def arm_name(arm: str) -> str:
    """The arm as the paper writes it."""
    return ARM_NAMES.get(arm, arm)
