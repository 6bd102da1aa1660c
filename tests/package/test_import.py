"""Importing the library in a fresh process: light, without a GPU, and without what only builds need."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.algebra.operators import FAMILY, NAMES
from tests.package.conftest import SOURCE

HIDE = """
import importlib.util, sys
hidden = {hidden!r}
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in hidden else find_spec(name, package)
"""
CALL = """
import torch
values = [torch.zeros(1, 3, 2, 128).bfloat16() for _ in "qkv"]
"""


def run(code: str, hidden: tuple[str, ...] = (), **environment: str) -> str:
    """What a fresh interpreter prints."""
    text = (HIDE.format(hidden=hidden) if hidden else "") + code
    result = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_is_light() -> None:
    """No CUDA context, no compiler, no kernel source, nothing but torch."""
    code = """
import sys, qla_ops, torch
heavy = ("tilelang", "tvm", "tvm_ffi", "torch._dynamo", "numpy.testing", "qla_ops.__main__")
print([name for name in heavy if name in sys.modules], torch.cuda.is_initialized())
print([name for name in sys.modules if name.startswith("qla_ops.kernels")])
"""
    assert run(code) == "[] False\n[]"


def test_without_tilelang_and_loader() -> None:
    """Import and the portable implementation work; what is missing is said when it is asked for."""
    code = """
import qla_ops
from qla_ops.runtime import choose, loader
print(loader.missing_loader())
print(qla_ops.chunk_delta_rule(*values, torch.zeros(1, 3, 2))[0].shape)
try:
    qla_ops.chunk_delta_rule.warmup()
except qla_ops.BuildError as fault:
    print(fault)
"""
    printed = run(CALL + code, ("tilelang", "tvm", "tvm_ffi"), QLA_OPS_CACHE="/nowhere").splitlines()
    assert printed == [
        "apache-tvm-ffi is not installed (pip install apache-tvm-ffi)",
        "torch.Size([1, 3, 2, 128])",
        "kernels cannot be built here: tilelang is not installed (pip install 'qla-ops[build]')",
    ]


def test_without_tilelang_kernels_are_a_reason() -> None:
    code = """
from qla_ops.runtime import choose
import qla_ops
print(choose.kernel_obstacle("delta_rule", "bfloat16"))
"""
    text = "the kernels are not built and tilelang is not installed (pip install 'qla-ops[build]')"
    assert run(CALL + code, ("tilelang", "tvm"), QLA_OPS_CACHE="/nowhere") == text


def test_build_command_without_tools() -> None:
    code = """
from qla_ops.__main__ import main
import contextlib, io
text = io.StringIO()
with contextlib.redirect_stderr(text):
    print(main(["build"]), main(["build", "--operator", "none"]))
print(text.getvalue().strip())
"""
    printed = run(code, ("tilelang", "tvm")).splitlines()
    assert printed == [
        "2 2",
        "kernels cannot be built here: tilelang is not installed (pip install 'qla-ops[build]')",
        f"unknown operator none; allowed: {', '.join(sorted((*NAMES, *FAMILY)))}",
    ]
