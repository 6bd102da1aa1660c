"""qlagen: a kernel compiler for chunked linear-attention operators."""

__version__ = "0.1.0"
