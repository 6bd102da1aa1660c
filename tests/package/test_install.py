"""The library as users get it: installed by pip into an environment of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.package.conftest import SOURCE

LIBRARY = SOURCE.parent
CODE = """
import pathlib, qla_ops, torch
from qla_ops.runtime import builder, choose, loader
values = [torch.zeros(1, 3, 2, 128).bfloat16() for _ in "qkv"]
print(pathlib.Path(qla_ops.__file__).parent)
print(qla_ops.chunk_delta_rule(*values, torch.ones(1, 3, 2))[0].shape)
kernels = [kernel for operator in choose.OPERATORS.values() for kernel, _ in loader.needed(operator, "bfloat16")]
print(len(kernels), all(builder.kernel_file(kernel).is_file() for kernel in kernels))
"""


@pytest.mark.slow
def test_pip_install(tmp_path: Path) -> None:
    """From a copy, so that pip leaves nothing in the checkout. torch comes from the environment of the tests."""
    copy, environment = tmp_path / "qla_ops", tmp_path / "environment"
    shutil.copytree(LIBRARY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", str(copy)], check=True)
    packages = next((environment / "lib").glob("python*")) / "site-packages"
    (packages / "torch_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    result = subprocess.run([python, "-I", "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    place, shape, kernels = result.stdout.splitlines()
    assert place == str(packages / "qla_ops")
    assert shape == "torch.Size([1, 3, 2, 128])"
    assert kernels.endswith(" True")
    assert int(kernels.split()[0]) > 3
