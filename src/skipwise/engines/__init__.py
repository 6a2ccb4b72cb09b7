"""What other engines make of a checkpoint: read it in each, compare; export it as GGUF.

Each ``read_with_*.py`` is a script of its own: it runs in a process, and where asked in an environment, in which its
engine is installed, and imports nothing of Skipwise. It reads a request and writes an answer, both JSON (``request.py``).
"""
