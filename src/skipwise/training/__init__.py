import skipwise.model  # noqa: F401 (holds back bitsandbytes' warnings before Trainer imports it)
